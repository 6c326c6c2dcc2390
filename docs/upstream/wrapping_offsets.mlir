module {
  func.func @main(%arg0: !torch.tensor<[3,33,49],f32>, %arg1: !torch.vtensor<[3,33,75],f32>, %arg2: !torch.vtensor<[3,75,49],f32>) attributes {torch.assume_strict_symbolic_shapes} {
    %int0 = torch.constant.int 0
    %int1 = torch.constant.int 1
    %0 = torch.prim.ListConstruct %int0, %int1, %int0, %int0 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %float0.000000e00 = torch.constant.float 0.000000e+00
    %1 = torch.prim.ListConstruct %int0, %int0, %int0, %int1 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %2 = torch.aten.constant_pad_nd %arg1, %0, %float0.000000e00 : !torch.vtensor<[3,33,75],f32>, !torch.list<int>, !torch.float -> !torch.vtensor<[3,33,76],f32>
    %3 = torch_c.to_builtin_tensor %2 : !torch.vtensor<[3,33,76],f32> -> tensor<3x33x76xf32>
    %4 = util.optimization_barrier %3 : tensor<3x33x76xf32>
    %5 = torch_c.from_builtin_tensor %4 : tensor<3x33x76xf32> -> !torch.vtensor<[3,33,76],f32>
    %6 = torch.aten.constant_pad_nd %arg2, %1, %float0.000000e00 : !torch.vtensor<[3,75,49],f32>, !torch.list<int>, !torch.float -> !torch.vtensor<[3,76,49],f32>
    %7 = torch_c.to_builtin_tensor %6 : !torch.vtensor<[3,76,49],f32> -> tensor<3x76x49xf32>
    %8 = util.optimization_barrier %7 : tensor<3x76x49xf32>
    %9 = torch_c.from_builtin_tensor %8 : tensor<3x76x49xf32> -> !torch.vtensor<[3,76,49],f32>
    %10 = torch.aten.bmm %5, %9 : !torch.vtensor<[3,33,76],f32>, !torch.vtensor<[3,76,49],f32> -> !torch.vtensor<[3,33,49],f32>
    torch.overwrite.tensor.contents %10 overwrites %arg0 : !torch.vtensor<[3,33,49],f32>, !torch.tensor<[3,33,49],f32>
    return
  }
}
