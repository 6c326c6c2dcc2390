module {
  func.func @main(%arg0: !torch.tensor<[2,4,2],f32>, %arg1: !torch.vtensor<[1,4,3],f32>, %arg2: !torch.vtensor<[2,3,2],f32>) attributes {torch.assume_strict_symbolic_shapes} {
    %int0 = torch.constant.int 0
    %int2 = torch.constant.int 2
    %int1 = torch.constant.int 1
    %0 = torch.prim.ListConstruct %int0, %int2, %int1 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %int3 = torch.constant.int 3
    %int4 = torch.constant.int 4
    %1 = torch.prim.ListConstruct %int2, %int3, %int4 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %2 = torch.prim.ListConstruct %int0, %int1 : (!torch.int, !torch.int) -> !torch.list<int>
    %float0.000000e00 = torch.constant.float 0.000000e+00
    %int5 = torch.constant.int 5
    %3 = torch.prim.ListConstruct %int2, %int3, %int1, %int5 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %4 = torch.prim.ListConstruct %int2, %int3, %int1, %int2 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %none = torch.constant.none
    %5 = torch.prim.ListConstruct %int1, %int1 : (!torch.int, !torch.int) -> !torch.list<int>
    %6 = torch.prim.ListConstruct %int0, %int0 : (!torch.int, !torch.int) -> !torch.list<int>
    %false = torch.constant.bool false
    %7 = torch.prim.ListConstruct  : () -> !torch.list<int>
    %8 = torch.prim.ListConstruct %int2, %int2, %int4 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %9 = torch.aten.permute %arg1, %0 : !torch.vtensor<[1,4,3],f32>, !torch.list<int> -> !torch.vtensor<[1,3,4],f32>
    %10 = torch.aten.broadcast_to %9, %1 : !torch.vtensor<[1,3,4],f32>, !torch.list<int> -> !torch.vtensor<[2,3,4],f32>
    %11 = torch.aten.permute %arg2, %0 : !torch.vtensor<[2,3,2],f32>, !torch.list<int> -> !torch.vtensor<[2,2,3],f32>
    %12 = torch_c.to_builtin_tensor %11 : !torch.vtensor<[2,2,3],f32> -> tensor<2x2x3xf32>
    %13 = util.optimization_barrier %12 : tensor<2x2x3xf32>
    %14 = torch_c.from_builtin_tensor %13 : tensor<2x2x3xf32> -> !torch.vtensor<[2,2,3],f32>
    %15 = torch.aten.permute %14, %0 : !torch.vtensor<[2,2,3],f32>, !torch.list<int> -> !torch.vtensor<[2,3,2],f32>
    %16 = torch.aten.constant_pad_nd %10, %2, %float0.000000e00 : !torch.vtensor<[2,3,4],f32>, !torch.list<int>, !torch.float -> !torch.vtensor<[2,3,5],f32>
    %17 = torch.aten.view %16, %3 : !torch.vtensor<[2,3,5],f32>, !torch.list<int> -> !torch.vtensor<[2,3,1,5],f32>
    %18 = torch.aten.view %15, %4 : !torch.vtensor<[2,3,2],f32>, !torch.list<int> -> !torch.vtensor<[2,3,1,2],f32>
    %19 = torch.aten.convolution %17, %18, %none, %5, %6, %5, %false, %7, %int1 : !torch.vtensor<[2,3,1,5],f32>, !torch.vtensor<[2,3,1,2],f32>, !torch.none, !torch.list<int>, !torch.list<int>, !torch.list<int>, !torch.bool, !torch.list<int>, !torch.int -> !torch.vtensor<[2,2,1,4],f32>
    %20 = torch.aten.view %19, %8 : !torch.vtensor<[2,2,1,4],f32>, !torch.list<int> -> !torch.vtensor<[2,2,4],f32>
    %21 = torch.aten.permute %20, %0 : !torch.vtensor<[2,2,4],f32>, !torch.list<int> -> !torch.vtensor<[2,4,2],f32>
    torch.overwrite.tensor.contents %21 overwrites %arg0 : !torch.vtensor<[2,4,2],f32>, !torch.tensor<[2,4,2],f32>
    return
  }
}
