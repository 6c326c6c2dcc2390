module {
  func.func @main(%arg0: !torch.tensor<[1,2,1],f32>, %arg1: !torch.vtensor<[1,64,7],f32>, %arg2: !torch.vtensor<[2,64,5],f32>, %arg3: !torch.vtensor<[1,2,1],f32>, %arg4: !torch.vtensor<[1,2,1],f32>) attributes {torch.assume_strict_symbolic_shapes} {
    %int2 = torch.constant.int 2
    %int0 = torch.constant.int 0
    %int5 = torch.constant.int 5
    %int1 = torch.constant.int 1
    %int64 = torch.constant.int 64
    %0 = torch.prim.ListConstruct %int1, %int64, %int1, %int5 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %1 = torch.prim.ListConstruct %int2, %int64, %int1, %int5 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %none = torch.constant.none
    %2 = torch.prim.ListConstruct %int1, %int1 : (!torch.int, !torch.int) -> !torch.list<int>
    %3 = torch.prim.ListConstruct %int0, %int0 : (!torch.int, !torch.int) -> !torch.list<int>
    %false = torch.constant.bool false
    %4 = torch.prim.ListConstruct  : () -> !torch.list<int>
    %5 = torch.prim.ListConstruct %int1, %int2, %int1 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %6 = torch.aten.slice.Tensor %arg1, %int2, %int0, %int5, %int1 : !torch.vtensor<[1,64,7],f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !torch.vtensor<[1,64,5],f32>
    %7 = torch.aten.view %6, %0 : !torch.vtensor<[1,64,5],f32>, !torch.list<int> -> !torch.vtensor<[1,64,1,5],f32>
    %8 = torch.aten.view %arg2, %1 : !torch.vtensor<[2,64,5],f32>, !torch.list<int> -> !torch.vtensor<[2,64,1,5],f32>
    %9 = torch.aten.convolution %7, %8, %none, %2, %3, %2, %false, %4, %int1 : !torch.vtensor<[1,64,1,5],f32>, !torch.vtensor<[2,64,1,5],f32>, !torch.none, !torch.list<int>, !torch.list<int>, !torch.list<int>, !torch.bool, !torch.list<int>, !torch.int -> !torch.vtensor<[1,2,1,1],f32>
    %10 = torch.aten.view %9, %5 : !torch.vtensor<[1,2,1,1],f32>, !torch.list<int> -> !torch.vtensor<[1,2,1],f32>
    %11 = torch.aten.add.Tensor %10, %arg3, %int1 : !torch.vtensor<[1,2,1],f32>, !torch.vtensor<[1,2,1],f32>, !torch.int -> !torch.vtensor<[1,2,1],f32>
    %12 = torch.aten.add.Tensor %11, %arg4, %int1 : !torch.vtensor<[1,2,1],f32>, !torch.vtensor<[1,2,1],f32>, !torch.int -> !torch.vtensor<[1,2,1],f32>
    %13 = torch.aten.sigmoid %12 : !torch.vtensor<[1,2,1],f32> -> !torch.vtensor<[1,2,1],f32>
    torch.overwrite.tensor.contents %13 overwrites %arg0 : !torch.vtensor<[1,2,1],f32>, !torch.tensor<[1,2,1],f32>
    return
  }
}
