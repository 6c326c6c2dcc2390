module {
  func.func @main(%arg0: !torch.tensor<[8,32,3,3],f32>, %arg1: !torch.vtensor<[8,1,9,9],f32>, %arg2: !torch.vtensor<[32,1,4,4],f32>) attributes {torch.assume_strict_symbolic_shapes} {
    %none = torch.constant.none
    %int1 = torch.constant.int 1
    %0 = torch.prim.ListConstruct %int1, %int1 : (!torch.int, !torch.int) -> !torch.list<int>
    %int0 = torch.constant.int 0
    %1 = torch.prim.ListConstruct %int0, %int0 : (!torch.int, !torch.int) -> !torch.list<int>
    %int2 = torch.constant.int 2
    %2 = torch.prim.ListConstruct %int2, %int2 : (!torch.int, !torch.int) -> !torch.list<int>
    %false = torch.constant.bool false
    %3 = torch.prim.ListConstruct  : () -> !torch.list<int>
    %4 = torch.aten.convolution %arg1, %arg2, %none, %0, %1, %2, %false, %3, %int1 : !torch.vtensor<[8,1,9,9],f32>, !torch.vtensor<[32,1,4,4],f32>, !torch.none, !torch.list<int>, !torch.list<int>, !torch.list<int>, !torch.bool, !torch.list<int>, !torch.int -> !torch.vtensor<[8,32,3,3],f32>
    torch.overwrite.tensor.contents %4 overwrites %arg0 : !torch.vtensor<[8,32,3,3],f32>, !torch.tensor<[8,32,3,3],f32>
    return
  }
}
