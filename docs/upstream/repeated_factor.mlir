module {
  func.func @main(%arg0: !torch.tensor<[1,1,16,1,16],f32>, %arg1: !torch.vtensor<[1,1,16,2,16],f32>, %arg2: !torch.vtensor<[2,1,1,1,16],f32>) attributes {torch.assume_strict_symbolic_shapes} {
    %int0 = torch.constant.int 0
    %int1 = torch.constant.int 1
    %int3 = torch.constant.int 3
    %0 = torch.prim.ListConstruct %int0, %int1, %int3 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %true = torch.constant.bool true
    %int6 = torch.constant.int 6
    %1 = torch.aten.mul.Tensor %arg1, %arg2 : !torch.vtensor<[1,1,16,2,16],f32>, !torch.vtensor<[2,1,1,1,16],f32> -> !torch.vtensor<[2,1,16,2,16],f32>
    %2 = torch.aten.sum.dim_IntList %1, %0, %true, %int6 : !torch.vtensor<[2,1,16,2,16],f32>, !torch.list<int>, !torch.bool, !torch.int -> !torch.vtensor<[1,1,16,1,16],f32>
    torch.overwrite.tensor.contents %2 overwrites %arg0 : !torch.vtensor<[1,1,16,1,16],f32>, !torch.tensor<[1,1,16,1,16],f32>
    return
  }
}
