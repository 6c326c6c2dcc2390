module {
  func.func @main(%arg0: !torch.tensor<[3,7,1,5],f32>, %arg1: !torch.vtensor<[3,14,3,8],f32>, %arg2: !torch.vtensor<[5,2,2,8],f32>) attributes {torch.assume_strict_symbolic_shapes} {
    %int0 = torch.constant.int 0
    %int3 = torch.constant.int 3
    %int1 = torch.constant.int 1
    %int2 = torch.constant.int 2
    %0 = torch.prim.ListConstruct %int0, %int3, %int1, %int2 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %none = torch.constant.none
    %1 = torch.prim.ListConstruct %int2, %int1 : (!torch.int, !torch.int) -> !torch.list<int>
    %2 = torch.prim.ListConstruct %int1, %int0 : (!torch.int, !torch.int) -> !torch.list<int>
    %false = torch.constant.bool false
    %3 = torch.prim.ListConstruct  : () -> !torch.list<int>
    %4 = torch.prim.ListConstruct %int0, %int2, %int3, %int1 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %5 = torch.aten.permute %arg1, %0 : !torch.vtensor<[3,14,3,8],f32>, !torch.list<int> -> !torch.vtensor<[3,8,14,3],f32>
    %6 = torch.aten.permute %arg2, %0 : !torch.vtensor<[5,2,2,8],f32>, !torch.list<int> -> !torch.vtensor<[5,8,2,2],f32>
    %7 = torch.aten.slice.Tensor %5, %int3, %int0, %int2, %int1 : !torch.vtensor<[3,8,14,3],f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !torch.vtensor<[3,8,14,2],f32>
    %8 = torch.aten.convolution %7, %6, %none, %1, %2, %1, %false, %3, %int1 : !torch.vtensor<[3,8,14,2],f32>, !torch.vtensor<[5,8,2,2],f32>, !torch.none, !torch.list<int>, !torch.list<int>, !torch.list<int>, !torch.bool, !torch.list<int>, !torch.int -> !torch.vtensor<[3,5,7,1],f32>
    %9 = torch.aten.sigmoid %8 : !torch.vtensor<[3,5,7,1],f32> -> !torch.vtensor<[3,5,7,1],f32>
    %10 = torch.aten.permute %9, %4 : !torch.vtensor<[3,5,7,1],f32>, !torch.list<int> -> !torch.vtensor<[3,7,1,5],f32>
    torch.overwrite.tensor.contents %10 overwrites %arg0 : !torch.vtensor<[3,7,1,5],f32>, !torch.tensor<[3,7,1,5],f32>
    return
  }
}
