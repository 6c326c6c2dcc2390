module {
  func.func @main(%arg0: !torch.tensor<[3,3,7],f32>, %arg1: !torch.vtensor<[3,31,8],f32>, %arg2: !torch.vtensor<[3,2,31],f32>, %arg3: !torch.vtensor<[1,3,1],f32>, %arg4: !torch.vtensor<[3,3,7],f32>) attributes {torch.assume_strict_symbolic_shapes} {
    %int0 = torch.constant.int 0
    %int2 = torch.constant.int 2
    %int1 = torch.constant.int 1
    %0 = torch.prim.ListConstruct %int0, %int2, %int1 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %int3 = torch.constant.int 3
    %int31 = torch.constant.int 31
    %int8 = torch.constant.int 8
    %1 = torch.prim.ListConstruct %int3, %int31, %int1, %int8 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %2 = torch.prim.ListConstruct %int3, %int31, %int1, %int2 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %none = torch.constant.none
    %3 = torch.prim.ListConstruct %int1, %int1 : (!torch.int, !torch.int) -> !torch.list<int>
    %4 = torch.prim.ListConstruct %int0, %int0 : (!torch.int, !torch.int) -> !torch.list<int>
    %false = torch.constant.bool false
    %5 = torch.prim.ListConstruct  : () -> !torch.list<int>
    %int7 = torch.constant.int 7
    %6 = torch.prim.ListConstruct %int3, %int3, %int7 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %7 = torch.aten.permute %arg2, %0 : !torch.vtensor<[3,2,31],f32>, !torch.list<int> -> !torch.vtensor<[3,31,2],f32>
    %8 = torch.aten.view %arg1, %1 : !torch.vtensor<[3,31,8],f32>, !torch.list<int> -> !torch.vtensor<[3,31,1,8],f32>
    %9 = torch.aten.view %7, %2 : !torch.vtensor<[3,31,2],f32>, !torch.list<int> -> !torch.vtensor<[3,31,1,2],f32>
    %10 = torch.aten.convolution %8, %9, %none, %3, %4, %3, %false, %5, %int1 : !torch.vtensor<[3,31,1,8],f32>, !torch.vtensor<[3,31,1,2],f32>, !torch.none, !torch.list<int>, !torch.list<int>, !torch.list<int>, !torch.bool, !torch.list<int>, !torch.int -> !torch.vtensor<[3,3,1,7],f32>
    %11 = torch.aten.view %10, %6 : !torch.vtensor<[3,3,1,7],f32>, !torch.list<int> -> !torch.vtensor<[3,3,7],f32>
    %12 = torch.aten.add.Tensor %11, %arg3, %int1 : !torch.vtensor<[3,3,7],f32>, !torch.vtensor<[1,3,1],f32>, !torch.int -> !torch.vtensor<[3,3,7],f32>
    %13 = torch.aten.add.Tensor %12, %arg4, %int1 : !torch.vtensor<[3,3,7],f32>, !torch.vtensor<[3,3,7],f32>, !torch.int -> !torch.vtensor<[3,3,7],f32>
    %14 = torch.aten.sigmoid %13 : !torch.vtensor<[3,3,7],f32> -> !torch.vtensor<[3,3,7],f32>
    %15 = torch.aten.mul.Tensor %13, %14 : !torch.vtensor<[3,3,7],f32>, !torch.vtensor<[3,3,7],f32> -> !torch.vtensor<[3,3,7],f32>
    torch.overwrite.tensor.contents %15 overwrites %arg0 : !torch.vtensor<[3,3,7],f32>, !torch.tensor<[3,3,7],f32>
    return
  }
}
