module {
  func.func @main(%arg0: !torch.tensor<[3,5,1,1],f32>, %arg1: !torch.vtensor<[3,8,1,1],f32>, %arg2: !torch.vtensor<[5,8,3,3],f32>) attributes {torch.assume_strict_symbolic_shapes} {
    %none = torch.constant.none
    %int1 = torch.constant.int 1
    %0 = torch.prim.ListConstruct %int1, %int1 : (!torch.int, !torch.int) -> !torch.list<int>
    %false = torch.constant.bool false
    %1 = torch.prim.ListConstruct  : () -> !torch.list<int>
    %2 = torch.aten.convolution %arg1, %arg2, %none, %0, %0, %0, %false, %1, %int1 : !torch.vtensor<[3,8,1,1],f32>, !torch.vtensor<[5,8,3,3],f32>, !torch.none, !torch.list<int>, !torch.list<int>, !torch.list<int>, !torch.bool, !torch.list<int>, !torch.int -> !torch.vtensor<[3,5,1,1],f32>
    torch.overwrite.tensor.contents %2 overwrites %arg0 : !torch.vtensor<[3,5,1,1],f32>, !torch.tensor<[3,5,1,1],f32>
    return
  }
}
