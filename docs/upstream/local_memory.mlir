#map = affine_map<(d0, d1, d2, d3, d4, d5, d6) -> (d0, d1, d2, d3, d4, d5, d6)>
module {
  func.func @main(%arg0: !torch.tensor<[8,2,32,32],f16>, %arg1: !torch.vtensor<[8,64,16,16],f16>, %arg2: !torch.vtensor<[64,2,3,3],f16>) attributes {torch.assume_strict_symbolic_shapes} {
    %int0 = torch.constant.int 0
    %int1 = torch.constant.int 1
    %int2 = torch.constant.int 2
    %int3 = torch.constant.int 3
    %int6 = torch.constant.int 6
    %int4 = torch.constant.int 4
    %int5 = torch.constant.int 5
    %0 = torch.prim.ListConstruct %int0, %int1, %int2, %int3, %int6, %int4, %int5 : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %int8 = torch.constant.int 8
    %int64 = torch.constant.int 64
    %1 = torch.prim.ListConstruct %int8, %int64, %int2, %int2 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %2 = torch.prim.ListConstruct %int0, %int1, %int0, %int1 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %float0.000000e00 = torch.constant.float 0.000000e+00
    %none = torch.constant.none
    %3 = torch.prim.ListConstruct %int1, %int1 : (!torch.int, !torch.int) -> !torch.list<int>
    %4 = torch.prim.ListConstruct %int0, %int0 : (!torch.int, !torch.int) -> !torch.list<int>
    %false = torch.constant.bool false
    %5 = torch.prim.ListConstruct  : () -> !torch.list<int>
    %int16 = torch.constant.int 16
    %6 = torch.prim.ListConstruct %int8, %int2, %int2, %int2, %int16, %int16 : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %7 = torch.prim.ListConstruct %int0, %int1, %int4, %int2, %int5, %int3 : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %int32 = torch.constant.int 32
    %8 = torch.prim.ListConstruct %int8, %int2, %int32, %int32 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %9 = torch_c.to_builtin_tensor %arg2 : !torch.vtensor<[64,2,3,3],f16> -> tensor<64x2x3x3xf16>
    %10 = call @filter_0(%9) : (tensor<64x2x3x3xf16>) -> tensor<1x2x2x2x2x2x64xf16>
    %11 = torch_c.from_builtin_tensor %10 : tensor<1x2x2x2x2x2x64xf16> -> !torch.vtensor<[1,2,2,2,2,2,64],f16>
    %12 = torch.aten.permute %11, %0 : !torch.vtensor<[1,2,2,2,2,2,64],f16>, !torch.list<int> -> !torch.vtensor<[1,2,2,2,64,2,2],f16>
    %13 = torch.aten.view %12, %1 : !torch.vtensor<[1,2,2,2,64,2,2],f16>, !torch.list<int> -> !torch.vtensor<[8,64,2,2],f16>
    %14 = torch.aten.constant_pad_nd %arg1, %2, %float0.000000e00 : !torch.vtensor<[8,64,16,16],f16>, !torch.list<int>, !torch.float -> !torch.vtensor<[8,64,17,17],f16>
    %15 = torch.aten.convolution %14, %13, %none, %3, %4, %3, %false, %5, %int1 : !torch.vtensor<[8,64,17,17],f16>, !torch.vtensor<[8,64,2,2],f16>, !torch.none, !torch.list<int>, !torch.list<int>, !torch.list<int>, !torch.bool, !torch.list<int>, !torch.int -> !torch.vtensor<[8,8,16,16],f32>
    %16 = torch.aten.view %15, %6 : !torch.vtensor<[8,8,16,16],f32>, !torch.list<int> -> !torch.vtensor<[8,2,2,2,16,16],f32>
    %17 = torch.aten.permute %16, %7 : !torch.vtensor<[8,2,2,2,16,16],f32>, !torch.list<int> -> !torch.vtensor<[8,2,16,2,16,2],f32>
    %18 = torch.aten.view %17, %8 : !torch.vtensor<[8,2,16,2,16,2],f32>, !torch.list<int> -> !torch.vtensor<[8,2,32,32],f32>
    %19 = torch.prims.convert_element_type %18, %int5 : !torch.vtensor<[8,2,32,32],f32>, !torch.int -> !torch.vtensor<[8,2,32,32],f16>
    torch.overwrite.tensor.contents %19 overwrites %arg0 : !torch.vtensor<[8,2,32,32],f16>, !torch.tensor<[8,2,32,32],f16>
    return
  }
  func.func private @filter_0(%arg0: tensor<64x2x3x3xf16>) -> tensor<1x2x2x2x2x2x64xf16> {
    %cst = arith.constant 0.000000e+00 : f16
    %0 = tensor.empty() : tensor<1x2x2x2x2x2x64xf16>
    %1 = linalg.generic {indexing_maps = [#map], iterator_types = ["parallel", "parallel", "parallel", "parallel", "parallel", "parallel", "parallel"]} outs(%0 : tensor<1x2x2x2x2x2x64xf16>) {
    ^bb0(%out: f16):
      %2 = linalg.index 0 : index
      %c64 = arith.constant 64 : index
      %3 = arith.muli %2, %c64 : index
      %4 = linalg.index 6 : index
      %5 = arith.addi %3, %4 : index
      %6 = linalg.index 1 : index
      %c1 = arith.constant 1 : index
      %7 = linalg.index 2 : index
      %8 = arith.addi %c1, %7 : index
      %9 = linalg.index 4 : index
      %c2 = arith.constant 2 : index
      %10 = arith.muli %9, %c2 : index
      %11 = arith.subi %8, %10 : index
      %c0 = arith.constant 0 : index
      %12 = arith.cmpi sge, %11, %c0 : index
      %c0_0 = arith.constant 0 : index
      %13 = arith.maxsi %11, %c0_0 : index
      %c1_1 = arith.constant 1 : index
      %14 = linalg.index 3 : index
      %15 = arith.addi %c1_1, %14 : index
      %16 = linalg.index 5 : index
      %c2_2 = arith.constant 2 : index
      %17 = arith.muli %16, %c2_2 : index
      %18 = arith.subi %15, %17 : index
      %c0_3 = arith.constant 0 : index
      %19 = arith.cmpi sge, %18, %c0_3 : index
      %20 = arith.andi %12, %19 : i1
      %c0_4 = arith.constant 0 : index
      %21 = arith.maxsi %18, %c0_4 : index
      %extracted = tensor.extract %arg0[%5, %6, %13, %21] : tensor<64x2x3x3xf16>
      %22 = arith.select %20, %extracted, %cst : f16
      linalg.yield %22 : f16
    } -> tensor<1x2x2x2x2x2x64xf16>
    return %1 : tensor<1x2x2x2x2x2x64xf16>
  }
}
