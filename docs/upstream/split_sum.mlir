module {
  func.func @main(%arg0: !torch.tensor<[1,15,6,3],f32>, %arg1: !torch.vtensor<[1,16,16,96],f32>, %arg2: !torch.vtensor<[3,96,2,3],f32>) attributes {torch.assume_strict_symbolic_shapes} {
    %int0 = torch.constant.int 0
    %int3 = torch.constant.int 3
    %int1 = torch.constant.int 1
    %int2 = torch.constant.int 2
    %0 = torch.prim.ListConstruct %int0, %int3, %int1, %int2 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %none = torch.constant.none
    %1 = torch.prim.ListConstruct %int1, %int3 : (!torch.int, !torch.int) -> !torch.list<int>
    %2 = torch.prim.ListConstruct %int0, %int1 : (!torch.int, !torch.int) -> !torch.list<int>
    %3 = torch.prim.ListConstruct %int1, %int1 : (!torch.int, !torch.int) -> !torch.list<int>
    %false = torch.constant.bool false
    %4 = torch.prim.ListConstruct  : () -> !torch.list<int>
    %5 = torch.prim.ListConstruct %int0, %int2, %int3, %int1 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %6 = torch.aten.permute %arg1, %0 : !torch.vtensor<[1,16,16,96],f32>, !torch.list<int> -> !torch.vtensor<[1,96,16,16],f32>
    %7 = torch.aten.convolution %6, %arg2, %none, %1, %2, %3, %false, %4, %int1 : !torch.vtensor<[1,96,16,16],f32>, !torch.vtensor<[3,96,2,3],f32>, !torch.none, !torch.list<int>, !torch.list<int>, !torch.list<int>, !torch.bool, !torch.list<int>, !torch.int -> !torch.vtensor<[1,3,15,6],f32>
    %8 = torch.aten.neg %7 : !torch.vtensor<[1,3,15,6],f32> -> !torch.vtensor<[1,3,15,6],f32>
    %9 = torch.aten.permute %8, %5 : !torch.vtensor<[1,3,15,6],f32>, !torch.list<int> -> !torch.vtensor<[1,15,6,3],f32>
    torch.overwrite.tensor.contents %9 overwrites %arg0 : !torch.vtensor<[1,15,6,3],f32>, !torch.tensor<[1,15,6,3],f32>
    return
  }
}
