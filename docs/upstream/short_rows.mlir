module {
  func.func @main(%arg0: !torch.tensor<[3,1,2,1],f32>, %arg1: !torch.vtensor<[3,512,2,3],f32>) attributes {torch.assume_strict_symbolic_shapes} {
    %int1 = torch.constant.int 1
    %int3 = torch.constant.int 3
    %0 = torch.prim.ListConstruct %int1, %int3 : (!torch.int, !torch.int) -> !torch.list<int>
    %true = torch.constant.bool true
    %int6 = torch.constant.int 6
    %1 = torch.aten.sum.dim_IntList %arg1, %0, %true, %int6 : !torch.vtensor<[3,512,2,3],f32>, !torch.list<int>, !torch.bool, !torch.int -> !torch.vtensor<[3,1,2,1],f32>
    torch.overwrite.tensor.contents %1 overwrites %arg0 : !torch.vtensor<[3,1,2,1],f32>, !torch.tensor<[3,1,2,1],f32>
    return
  }
}
