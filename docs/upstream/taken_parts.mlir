#map = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
module {
  func.func @main(%arg0: !torch.tensor<[1,1,3],f32>, %arg1: !torch.vtensor<[123],f32>) attributes {torch.assume_strict_symbolic_shapes} {
    %int0 = torch.constant.int 0
    %int2 = torch.constant.int 2
    %0 = torch.prim.ListConstruct %int0, %int2 : (!torch.int, !torch.int) -> !torch.list<int>
    %float0.000000e00 = torch.constant.float 0.000000e+00
    %int5 = torch.constant.int 5
    %int1 = torch.constant.int 1
    %1 = torch.prim.ListConstruct %int5, %int5, %int5, %int1 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %int3 = torch.constant.int 3
    %2 = torch.prim.ListConstruct %int5, %int5, %int3 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %3 = torch.prim.ListConstruct %int2, %int0, %int1 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %4 = torch.prim.ListConstruct %int1, %int2, %int0 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %5 = torch.prim.ListConstruct %int0, %int1 : (!torch.int, !torch.int) -> !torch.list<int>
    %true = torch.constant.bool true
    %int6 = torch.constant.int 6
    %float1.500000e01 = torch.constant.float 1.500000e+01
    %6 = torch.aten.constant_pad_nd %arg1, %0, %float0.000000e00 : !torch.vtensor<[123],f32>, !torch.list<int>, !torch.float -> !torch.vtensor<[125],f32>
    %7 = torch.aten.view %6, %1 : !torch.vtensor<[125],f32>, !torch.list<int> -> !torch.vtensor<[5,5,5,1],f32>
    %8 = torch.aten.slice.Tensor %7, %int2, %int0, %int3, %int1 : !torch.vtensor<[5,5,5,1],f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !torch.vtensor<[5,5,3,1],f32>
    %9 = torch.aten.view %8, %2 : !torch.vtensor<[5,5,3,1],f32>, !torch.list<int> -> !torch.vtensor<[5,5,3],f32>
    %10 = torch.aten.permute %9, %3 : !torch.vtensor<[5,5,3],f32>, !torch.list<int> -> !torch.vtensor<[3,5,5],f32>
    %11 = torch.aten.permute %10, %4 : !torch.vtensor<[3,5,5],f32>, !torch.list<int> -> !torch.vtensor<[5,5,3],f32>
    %12 = torch_c.to_builtin_tensor %11 : !torch.vtensor<[5,5,3],f32> -> tensor<5x5x3xf32>
    %13 = call @pool_0(%12) : (tensor<5x5x3xf32>) -> tensor<5x3x3xf32>
    %14 = torch_c.from_builtin_tensor %13 : tensor<5x3x3xf32> -> !torch.vtensor<[5,3,3],f32>
    %15 = torch.aten.permute %14, %3 : !torch.vtensor<[5,3,3],f32>, !torch.list<int> -> !torch.vtensor<[3,5,3],f32>
    %16 = torch.aten.sum.dim_IntList %15, %5, %true, %int6 : !torch.vtensor<[3,5,3],f32>, !torch.list<int>, !torch.bool, !torch.int -> !torch.vtensor<[1,1,3],f32>
    %17 = torch.aten.div.Scalar %16, %float1.500000e01 : !torch.vtensor<[1,1,3],f32>, !torch.float -> !torch.vtensor<[1,1,3],f32>
    torch.overwrite.tensor.contents %17 overwrites %arg0 : !torch.vtensor<[1,1,3],f32>, !torch.tensor<[1,1,3],f32>
    return
  }
  func.func private @pool_0(%arg0: tensor<5x5x3xf32>) -> tensor<5x3x3xf32> {
    %0 = tensor.empty() : tensor<5x3x3xf32>
    %1 = linalg.generic {indexing_maps = [#map], iterator_types = ["parallel", "parallel", "parallel"]} outs(%0 : tensor<5x3x3xf32>) {
    ^bb0(%out: f32):
      %3 = linalg.index 0 : index
      %4 = linalg.index 1 : index
      %5 = linalg.index 2 : index
      %c2 = arith.constant 2 : index
      %6 = arith.muli %4, %c2 : index
      %c0 = arith.constant 0 : index
      %7 = arith.addi %6, %c0 : index
      %c0_0 = arith.constant 0 : index
      %8 = arith.maxsi %7, %c0_0 : index
      %c4 = arith.constant 4 : index
      %9 = arith.minsi %8, %c4 : index
      %10 = arith.cmpi eq, %7, %9 : index
      %extracted = tensor.extract %arg0[%3, %9, %5] : tensor<5x5x3xf32>
      %cst = arith.constant 0.000000e+00 : f32
      %11 = arith.select %10, %extracted, %cst : f32
      %12 = linalg.index 0 : index
      %13 = linalg.index 1 : index
      %14 = linalg.index 2 : index
      %c2_1 = arith.constant 2 : index
      %15 = arith.muli %13, %c2_1 : index
      %c1 = arith.constant 1 : index
      %16 = arith.addi %15, %c1 : index
      %c0_2 = arith.constant 0 : index
      %17 = arith.maxsi %16, %c0_2 : index
      %c4_3 = arith.constant 4 : index
      %18 = arith.minsi %17, %c4_3 : index
      %19 = arith.cmpi eq, %16, %18 : index
      %extracted_4 = tensor.extract %arg0[%12, %18, %14] : tensor<5x5x3xf32>
      %cst_5 = arith.constant 0.000000e+00 : f32
      %20 = arith.select %19, %extracted_4, %cst_5 : f32
      %21 = arith.addf %11, %20 : f32
      linalg.yield %21 : f32
    } -> tensor<5x3x3xf32>
    %2 = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%1 : tensor<5x3x3xf32>) outs(%0 : tensor<5x3x3xf32>) {
    ^bb0(%in: f32, %out: f32):
      %cst = arith.constant 2.000000e+00 : f32
      %3 = arith.divf %in, %cst : f32
      linalg.yield %3 : f32
    } -> tensor<5x3x3xf32>
    return %2 : tensor<5x3x3xf32>
  }
}
