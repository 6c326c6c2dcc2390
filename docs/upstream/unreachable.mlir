module {
  func.func @main(%arg0: !torch.tensor<[1,10,3,4],f32>, %arg1: !torch.vtensor<[1,28,8,2],f32>, %arg2: !torch.vtensor<[4,1,2,2],f32>, %arg3: !torch.vtensor<[1,4,1,1],f32>, %arg4: !torch.vtensor<[1,4,10,3],f32>) attributes {torch.assume_strict_symbolic_shapes} {
    %int0 = torch.constant.int 0
    %int3 = torch.constant.int 3
    %int1 = torch.constant.int 1
    %int2 = torch.constant.int 2
    %0 = torch.prim.ListConstruct %int0, %int3, %int1, %int2 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %int28 = torch.constant.int 28
    %int8 = torch.constant.int 8
    %1 = torch.prim.ListConstruct %int1, %int2, %int1, %int28, %int8 : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %2 = torch.prim.ListConstruct %int0, %int0, %int0, %int0, %int0, %int1 : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %float0.000000e00 = torch.constant.float 0.000000e+00
    %int4 = torch.constant.int 4
    %3 = torch.prim.ListConstruct %int1, %int4, %int28, %int8 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %none = torch.constant.none
    %4 = torch.prim.ListConstruct %int3, %int2 : (!torch.int, !torch.int) -> !torch.list<int>
    %5 = torch.prim.ListConstruct %int1, %int0 : (!torch.int, !torch.int) -> !torch.list<int>
    %6 = torch.prim.ListConstruct %int1, %int2 : (!torch.int, !torch.int) -> !torch.list<int>
    %false = torch.constant.bool false
    %7 = torch.prim.ListConstruct  : () -> !torch.list<int>
    %8 = torch.prim.ListConstruct %int0, %int2, %int3, %int1 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %9 = torch.aten.permute %arg1, %0 : !torch.vtensor<[1,28,8,2],f32>, !torch.list<int> -> !torch.vtensor<[1,2,28,8],f32>
    %10 = torch.aten.view %9, %1 : !torch.vtensor<[1,2,28,8],f32>, !torch.list<int> -> !torch.vtensor<[1,2,1,28,8],f32>
    %11 = torch.aten.constant_pad_nd %10, %2, %float0.000000e00 : !torch.vtensor<[1,2,1,28,8],f32>, !torch.list<int>, !torch.float -> !torch.vtensor<[1,2,2,28,8],f32>
    %12 = torch.aten.view %11, %3 : !torch.vtensor<[1,2,2,28,8],f32>, !torch.list<int> -> !torch.vtensor<[1,4,28,8],f32>
    %13 = torch_c.to_builtin_tensor %12 : !torch.vtensor<[1,4,28,8],f32> -> tensor<1x4x28x8xf32>
    %14 = util.optimization_barrier %13 : tensor<1x4x28x8xf32>
    %15 = torch_c.from_builtin_tensor %14 : tensor<1x4x28x8xf32> -> !torch.vtensor<[1,4,28,8],f32>
    %16 = torch.aten.constant_pad_nd %arg2, %2, %float0.000000e00 : !torch.vtensor<[4,1,2,2],f32>, !torch.list<int>, !torch.float -> !torch.vtensor<[4,2,2,2],f32>
    %17 = torch_c.to_builtin_tensor %16 : !torch.vtensor<[4,2,2,2],f32> -> tensor<4x2x2x2xf32>
    %18 = util.optimization_barrier %17 : tensor<4x2x2x2xf32>
    %19 = torch_c.from_builtin_tensor %18 : tensor<4x2x2x2xf32> -> !torch.vtensor<[4,2,2,2],f32>
    %20 = torch.aten.convolution %15, %19, %none, %4, %5, %6, %false, %7, %int2 : !torch.vtensor<[1,4,28,8],f32>, !torch.vtensor<[4,2,2,2],f32>, !torch.none, !torch.list<int>, !torch.list<int>, !torch.list<int>, !torch.bool, !torch.list<int>, !torch.int -> !torch.vtensor<[1,4,10,3],f32>
    %21 = torch.aten.add.Tensor %20, %arg3, %int1 : !torch.vtensor<[1,4,10,3],f32>, !torch.vtensor<[1,4,1,1],f32>, !torch.int -> !torch.vtensor<[1,4,10,3],f32>
    %22 = torch.aten.add.Tensor %21, %arg4, %int1 : !torch.vtensor<[1,4,10,3],f32>, !torch.vtensor<[1,4,10,3],f32>, !torch.int -> !torch.vtensor<[1,4,10,3],f32>
    %23 = torch.aten.tanh %22 : !torch.vtensor<[1,4,10,3],f32> -> !torch.vtensor<[1,4,10,3],f32>
    %24 = torch.aten.permute %23, %8 : !torch.vtensor<[1,4,10,3],f32>, !torch.list<int> -> !torch.vtensor<[1,10,3,4],f32>
    torch.overwrite.tensor.contents %24 overwrites %arg0 : !torch.vtensor<[1,10,3,4],f32>, !torch.tensor<[1,10,3,4],f32>
    return
  }
}
