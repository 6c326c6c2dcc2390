module {
  func.func @main(%arg0: !torch.tensor<[4,1],si32>, %arg1: !torch.vtensor<[4,64],si32>) attributes {torch.assume_strict_symbolic_shapes} {
    %int1 = torch.constant.int 1
    %0 = torch.prim.ListConstruct %int1 : (!torch.int) -> !torch.list<int>
    %true = torch.constant.bool true
    %1 = torch.aten.amax %arg1, %0, %true : !torch.vtensor<[4,64],si32>, !torch.list<int>, !torch.bool -> !torch.vtensor<[4,1],si32>
    torch.overwrite.tensor.contents %1 overwrites %arg0 : !torch.vtensor<[4,1],si32>, !torch.tensor<[4,1],si32>
    return
  }
}
