module {
  func.func @main(%arg0: !torch.tensor<[3,2,14,6],f16>, %arg1: !torch.vtensor<[3,2,14,10],f16>, %arg2: !torch.vtensor<[1,2,10,6],f16>) attributes {torch.assume_strict_symbolic_shapes} {
    %int1 = torch.constant.int 1
    %int0 = torch.constant.int 0
    %int2 = torch.constant.int 2
    %int3 = torch.constant.int 3
    %0 = torch.prim.ListConstruct %int1, %int0, %int2, %int3 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %int42 = torch.constant.int 42
    %int10 = torch.constant.int 10
    %1 = torch.prim.ListConstruct %int2, %int42, %int10 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %int6 = torch.constant.int 6
    %2 = torch.prim.ListConstruct %int2, %int10, %int6 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %3 = torch.prim.ListConstruct %int0, %int6, %int0, %int0 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %float0.000000e00 = torch.constant.float 0.000000e+00
    %4 = torch.prim.ListConstruct %int0, %int0, %int0, %int6 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %int14 = torch.constant.int 14
    %5 = torch.prim.ListConstruct %int2, %int3, %int14, %int6 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %int5 = torch.constant.int 5
    %6 = torch.aten.permute %arg1, %0 : !torch.vtensor<[3,2,14,10],f16>, !torch.list<int> -> !torch.vtensor<[2,3,14,10],f16>
    %7 = torch.aten.view %6, %1 : !torch.vtensor<[2,3,14,10],f16>, !torch.list<int> -> !torch.vtensor<[2,42,10],f16>
    %8 = torch.aten.view %arg2, %2 : !torch.vtensor<[1,2,10,6],f16>, !torch.list<int> -> !torch.vtensor<[2,10,6],f16>
    %9 = torch.aten.constant_pad_nd %7, %3, %float0.000000e00 : !torch.vtensor<[2,42,10],f16>, !torch.list<int>, !torch.float -> !torch.vtensor<[2,42,16],f16>
    %10 = torch_c.to_builtin_tensor %9 : !torch.vtensor<[2,42,16],f16> -> tensor<2x42x16xf16>
    %11 = util.optimization_barrier %10 : tensor<2x42x16xf16>
    %12 = torch_c.from_builtin_tensor %11 : tensor<2x42x16xf16> -> !torch.vtensor<[2,42,16],f16>
    %13 = torch.aten.constant_pad_nd %8, %4, %float0.000000e00 : !torch.vtensor<[2,10,6],f16>, !torch.list<int>, !torch.float -> !torch.vtensor<[2,16,6],f16>
    %14 = torch_c.to_builtin_tensor %13 : !torch.vtensor<[2,16,6],f16> -> tensor<2x16x6xf16>
    %15 = util.optimization_barrier %14 : tensor<2x16x6xf16>
    %16 = torch_c.from_builtin_tensor %15 : tensor<2x16x6xf16> -> !torch.vtensor<[2,16,6],f16>
    %17 = torch.aten.bmm %12, %16 : !torch.vtensor<[2,42,16],f16>, !torch.vtensor<[2,16,6],f16> -> !torch.vtensor<[2,42,6],f32>
    %18 = torch.aten.view %17, %5 : !torch.vtensor<[2,42,6],f32>, !torch.list<int> -> !torch.vtensor<[2,3,14,6],f32>
    %19 = torch.aten.permute %18, %0 : !torch.vtensor<[2,3,14,6],f32>, !torch.list<int> -> !torch.vtensor<[3,2,14,6],f32>
    %20 = torch.prims.convert_element_type %19, %int5 : !torch.vtensor<[3,2,14,6],f32>, !torch.int -> !torch.vtensor<[3,2,14,6],f16>
    torch.overwrite.tensor.contents %20 overwrites %arg0 : !torch.vtensor<[3,2,14,6],f16>, !torch.tensor<[3,2,14,6],f16>
    return
  }
}
