#map = affine_map<(d0, d1, d2, d3, d4) -> (d0, d1, d2, d3, d4)>
module {
  func.func @main(%arg0: !torch.tensor<[1,10,4],f32>, %arg1: !torch.vtensor<[1,4,4],f32>, %arg2: !torch.vtensor<[4,1,3],f32>) attributes {torch.assume_strict_symbolic_shapes} {
    %int0 = torch.constant.int 0
    %int2 = torch.constant.int 2
    %int1 = torch.constant.int 1
    %0 = torch.prim.ListConstruct %int0, %int2, %int1 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %int4 = torch.constant.int 4
    %int3 = torch.constant.int 3
    %1 = torch.prim.ListConstruct %int0, %int1, %int2, %int4, %int3 : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %int8 = torch.constant.int 8
    %2 = torch.prim.ListConstruct %int8, %int1, %int2 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %3 = torch.prim.ListConstruct %int1, %int4, %int1, %int4 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %4 = torch.prim.ListConstruct %int8, %int1, %int1, %int2 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %none = torch.constant.none
    %5 = torch.prim.ListConstruct %int1, %int1 : (!torch.int, !torch.int) -> !torch.list<int>
    %6 = torch.prim.ListConstruct %int0, %int1 : (!torch.int, !torch.int) -> !torch.list<int>
    %false = torch.constant.bool false
    %7 = torch.prim.ListConstruct  : () -> !torch.list<int>
    %int5 = torch.constant.int 5
    %8 = torch.prim.ListConstruct %int1, %int8, %int5 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %9 = torch.prim.ListConstruct %int1, %int4, %int2, %int5 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %10 = torch.prim.ListConstruct %int0, %int1, %int3, %int2 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %int10 = torch.constant.int 10
    %11 = torch.prim.ListConstruct %int1, %int4, %int10 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %12 = torch.aten.permute %arg1, %0 : !torch.vtensor<[1,4,4],f32>, !torch.list<int> -> !torch.vtensor<[1,4,4],f32>
    %13 = torch_c.to_builtin_tensor %arg2 : !torch.vtensor<[4,1,3],f32> -> tensor<4x1x3xf32>
    %14 = call @filter_0(%13) : (tensor<4x1x3xf32>) -> tensor<4x1x2x2x1xf32>
    %15 = torch_c.from_builtin_tensor %14 : tensor<4x1x2x2x1xf32> -> !torch.vtensor<[4,1,2,2,1],f32>
    %16 = torch.aten.permute %15, %1 : !torch.vtensor<[4,1,2,2,1],f32>, !torch.list<int> -> !torch.vtensor<[4,1,2,1,2],f32>
    %17 = torch.aten.view %16, %2 : !torch.vtensor<[4,1,2,1,2],f32>, !torch.list<int> -> !torch.vtensor<[8,1,2],f32>
    %18 = torch.aten.view %12, %3 : !torch.vtensor<[1,4,4],f32>, !torch.list<int> -> !torch.vtensor<[1,4,1,4],f32>
    %19 = torch.aten.view %17, %4 : !torch.vtensor<[8,1,2],f32>, !torch.list<int> -> !torch.vtensor<[8,1,1,2],f32>
    %20 = torch.aten.convolution %18, %19, %none, %5, %6, %5, %false, %7, %int4 : !torch.vtensor<[1,4,1,4],f32>, !torch.vtensor<[8,1,1,2],f32>, !torch.none, !torch.list<int>, !torch.list<int>, !torch.list<int>, !torch.bool, !torch.list<int>, !torch.int -> !torch.vtensor<[1,8,1,5],f32>
    %21 = torch.aten.view %20, %8 : !torch.vtensor<[1,8,1,5],f32>, !torch.list<int> -> !torch.vtensor<[1,8,5],f32>
    %22 = torch.aten.view %21, %9 : !torch.vtensor<[1,8,5],f32>, !torch.list<int> -> !torch.vtensor<[1,4,2,5],f32>
    %23 = torch.aten.permute %22, %10 : !torch.vtensor<[1,4,2,5],f32>, !torch.list<int> -> !torch.vtensor<[1,4,5,2],f32>
    %24 = torch.aten.view %23, %11 : !torch.vtensor<[1,4,5,2],f32>, !torch.list<int> -> !torch.vtensor<[1,4,10],f32>
    %25 = torch.aten.permute %24, %0 : !torch.vtensor<[1,4,10],f32>, !torch.list<int> -> !torch.vtensor<[1,10,4],f32>
    torch.overwrite.tensor.contents %25 overwrites %arg0 : !torch.vtensor<[1,10,4],f32>, !torch.tensor<[1,10,4],f32>
    return
  }
  func.func private @filter_0(%arg0: tensor<4x1x3xf32>) -> tensor<4x1x2x2x1xf32> {
    %cst = arith.constant 0.000000e+00 : f32
    %0 = tensor.empty() : tensor<4x1x2x2x1xf32>
    %1 = linalg.generic {indexing_maps = [#map], iterator_types = ["parallel", "parallel", "parallel", "parallel", "parallel"]} outs(%0 : tensor<4x1x2x2x1xf32>) {
    ^bb0(%out: f32):
      %2 = linalg.index 0 : index
      %3 = linalg.index 4 : index
      %4 = arith.addi %2, %3 : index
      %5 = linalg.index 1 : index
      %c2 = arith.constant 2 : index
      %6 = linalg.index 2 : index
      %7 = arith.addi %c2, %6 : index
      %8 = linalg.index 3 : index
      %c2_0 = arith.constant 2 : index
      %9 = arith.muli %8, %c2_0 : index
      %10 = arith.addi %7, %9 : index
      %c4 = arith.constant 4 : index
      %11 = arith.remui %10, %c4 : index
      %c3 = arith.constant 3 : index
      %12 = arith.cmpi slt, %11, %c3 : index
      %c2_1 = arith.constant 2 : index
      %13 = arith.minsi %11, %c2_1 : index
      %extracted = tensor.extract %arg0[%4, %5, %13] : tensor<4x1x3xf32>
      %14 = arith.select %12, %extracted, %cst : f32
      linalg.yield %14 : f32
    } -> tensor<4x1x2x2x1xf32>
    return %1 : tensor<4x1x2x2x1xf32>
  }
}
