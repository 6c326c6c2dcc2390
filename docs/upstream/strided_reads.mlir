#map = affine_map<(d0, d1, d2, d3) -> (d0, d1 * 2 + d3, d2)>
#map1 = affine_map<(d0, d1, d2, d3) -> (d3)>
#map2 = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2)>
#map3 = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
module {
  func.func @main(%arg0: !torch.tensor<[2,9,2],f32>, %arg1: !torch.tensor<[2,5,2],f32>, %arg2: !torch.vtensor<[2,9,2],f32>) attributes {torch.assume_strict_symbolic_shapes} {
    %int0 = torch.constant.int 0
    %int2 = torch.constant.int 2
    %int1 = torch.constant.int 1
    %0 = torch.prim.ListConstruct %int0, %int2, %int1 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %1 = torch.aten.permute %arg2, %0 : !torch.vtensor<[2,9,2],f32>, !torch.list<int> -> !torch.vtensor<[2,2,9],f32>
    %2 = torch.aten.neg %1 : !torch.vtensor<[2,2,9],f32> -> !torch.vtensor<[2,2,9],f32>
    %3 = torch.aten.permute %2, %0 : !torch.vtensor<[2,2,9],f32>, !torch.list<int> -> !torch.vtensor<[2,9,2],f32>
    %4 = torch_c.to_builtin_tensor %3 : !torch.vtensor<[2,9,2],f32> -> tensor<2x9x2xf32>
    %5 = call @pool_0(%4) : (tensor<2x9x2xf32>) -> tensor<2x5x2xi32>
    %6 = torch_c.from_builtin_tensor %5 : tensor<2x5x2xi32> -> !torch.vtensor<[2,5,2],si32>
    %7 = torch_c.to_builtin_tensor %6 : !torch.vtensor<[2,5,2],si32> -> tensor<2x5x2xi32>
    %8 = call @ordered_1(%7) : (tensor<2x5x2xi32>) -> tensor<2x5x2xf32>
    %9 = torch_c.from_builtin_tensor %8 : tensor<2x5x2xf32> -> !torch.vtensor<[2,5,2],f32>
    %10 = torch.aten.permute %9, %0 : !torch.vtensor<[2,5,2],f32>, !torch.list<int> -> !torch.vtensor<[2,2,5],f32>
    %11 = torch.aten.permute %2, %0 : !torch.vtensor<[2,2,9],f32>, !torch.list<int> -> !torch.vtensor<[2,9,2],f32>
    torch.overwrite.tensor.contents %11 overwrites %arg0 : !torch.vtensor<[2,9,2],f32>, !torch.tensor<[2,9,2],f32>
    %12 = torch.aten.permute %10, %0 : !torch.vtensor<[2,2,5],f32>, !torch.list<int> -> !torch.vtensor<[2,5,2],f32>
    torch.overwrite.tensor.contents %12 overwrites %arg1 : !torch.vtensor<[2,5,2],f32>, !torch.tensor<[2,5,2],f32>
    return
  }
  func.func private @pool_0(%arg0: tensor<2x9x2xf32>) -> tensor<2x5x2xi32> {
    %0 = tensor.empty() : tensor<1xi8>
    %c0_i32 = arith.constant 0 : i32
    %1 = tensor.empty() : tensor<2x5x2xi32>
    %2 = linalg.fill ins(%c0_i32 : i32) outs(%1 : tensor<2x5x2xi32>) -> tensor<2x5x2xi32>
    %3 = linalg.generic {indexing_maps = [#map, #map1, #map2], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%arg0, %0 : tensor<2x9x2xf32>, tensor<1xi8>) outs(%2 : tensor<2x5x2xi32>) {
    ^bb0(%in: f32, %in_0: i8, %out: i32):
      %4 = arith.bitcast %in : f32 to i32
      %c31_i32 = arith.constant 31 : i32
      %5 = arith.shrsi %4, %c31_i32 : i32
      %c2147483647_i32 = arith.constant 2147483647 : i32
      %6 = arith.andi %5, %c2147483647_i32 : i32
      %7 = arith.xori %4, %6 : i32
      %c-2147483648_i32 = arith.constant -2147483648 : i32
      %8 = arith.xori %7, %c-2147483648_i32 : i32
      %9 = arith.cmpf uno, %in, %in : f32
      %c-1_i32 = arith.constant -1 : i32
      %10 = arith.select %9, %c-1_i32, %8 : i32
      %11 = arith.maxui %out, %10 : i32
      linalg.yield %11 : i32
    } -> tensor<2x5x2xi32>
    return %3 : tensor<2x5x2xi32>
  }
  func.func private @ordered_1(%arg0: tensor<2x5x2xi32>) -> tensor<2x5x2xf32> {
    %0 = tensor.empty() : tensor<2x5x2xf32>
    %1 = linalg.generic {indexing_maps = [#map3, #map3], iterator_types = ["parallel", "parallel", "parallel"]} ins(%arg0 : tensor<2x5x2xi32>) outs(%0 : tensor<2x5x2xf32>) {
    ^bb0(%in: i32, %out: f32):
      %c-2147483648_i32 = arith.constant -2147483648 : i32
      %2 = arith.xori %in, %c-2147483648_i32 : i32
      %c31_i32 = arith.constant 31 : i32
      %3 = arith.shrsi %2, %c31_i32 : i32
      %c2147483647_i32 = arith.constant 2147483647 : i32
      %4 = arith.andi %3, %c2147483647_i32 : i32
      %5 = arith.xori %2, %4 : i32
      %6 = arith.bitcast %5 : i32 to f32
      linalg.yield %6 : f32
    } -> tensor<2x5x2xf32>
    return %1 : tensor<2x5x2xf32>
  }
}
