module {
  func.func @main(%arg0: !torch.tensor<[8,7,4,32],f32>, %arg1: !torch.vtensor<[8,14,9,52],f32>, %arg2: !torch.vtensor<[32,7,2,13],f32>) attributes {torch.assume_strict_symbolic_shapes} {
    %int0 = torch.constant.int 0
    %int3 = torch.constant.int 3
    %int1 = torch.constant.int 1
    %int2 = torch.constant.int 2
    %0 = torch.prim.ListConstruct %int0, %int3, %int1, %int2 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %none = torch.constant.none
    %1 = torch.prim.ListConstruct %int2, %int2 : (!torch.int, !torch.int) -> !torch.list<int>
    %int6 = torch.constant.int 6
    %2 = torch.prim.ListConstruct %int6, %int0 : (!torch.int, !torch.int) -> !torch.list<int>
    %3 = torch.prim.ListConstruct %int2, %int1 : (!torch.int, !torch.int) -> !torch.list<int>
    %false = torch.constant.bool false
    %4 = torch.prim.ListConstruct  : () -> !torch.list<int>
    %int4 = torch.constant.int 4
    %5 = torch.prim.ListConstruct %int0, %int2, %int3, %int1 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %6 = torch.aten.permute %arg1, %0 : !torch.vtensor<[8,14,9,52],f32>, !torch.list<int> -> !torch.vtensor<[8,52,14,9],f32>
    %7 = torch.aten.permute %arg2, %0 : !torch.vtensor<[32,7,2,13],f32>, !torch.list<int> -> !torch.vtensor<[32,13,7,2],f32>
    %8 = torch.aten.convolution %6, %7, %none, %1, %2, %3, %false, %4, %int4 : !torch.vtensor<[8,52,14,9],f32>, !torch.vtensor<[32,13,7,2],f32>, !torch.none, !torch.list<int>, !torch.list<int>, !torch.list<int>, !torch.bool, !torch.list<int>, !torch.int -> !torch.vtensor<[8,32,7,4],f32>
    %9 = torch.aten.permute %8, %5 : !torch.vtensor<[8,32,7,4],f32>, !torch.list<int> -> !torch.vtensor<[8,7,4,32],f32>
    torch.overwrite.tensor.contents %9 overwrites %arg0 : !torch.vtensor<[8,7,4,32],f32>, !torch.tensor<[8,7,4,32],f32>
    return
  }
}
