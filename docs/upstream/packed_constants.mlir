module {
  func.func @main(%arg0: !torch.tensor<[2,1,4],f64>, %arg1: !torch.vtensor<[1,2,3],f32>, %arg2: !torch.vtensor<[1,1,6],f32>) attributes {torch.assume_strict_symbolic_shapes} {
    %int1 = torch.constant.int 1
    %int6 = torch.constant.int 6
    %0 = torch.prim.ListConstruct %int1, %int1, %int1, %int6 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %int2 = torch.constant.int 2
    %int0 = torch.constant.int 0
    %int3 = torch.constant.int 3
    %1 = torch.prim.ListConstruct %int2, %int1, %int0, %int3 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %2 = torch.prim.ListConstruct %int1, %int1, %int6 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %3 = torch.prim.ListConstruct %int1, %int0, %int2 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %4 = torch.prim.ListConstruct %int2, %int1, %int1, %int3 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %none = torch.constant.none
    %5 = torch.prim.ListConstruct %int1, %int1 : (!torch.int, !torch.int) -> !torch.list<int>
    %6 = torch.prim.ListConstruct %int0, %int0 : (!torch.int, !torch.int) -> !torch.list<int>
    %false = torch.constant.bool false
    %7 = torch.prim.ListConstruct  : () -> !torch.list<int>
    %int4 = torch.constant.int 4
    %8 = torch.prim.ListConstruct %int1, %int2, %int4 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %float4.471500e-02 = torch.constant.float 4.471500e-02
    %float7.978850e-01 = torch.constant.float 0.79788456080286541
    %float1.341450e-01 = torch.constant.float 1.341450e-01
    %float1.000000e00 = torch.constant.float 1.000000e+00
    %float5.000000e-01 = torch.constant.float 5.000000e-01
    %int7 = torch.constant.int 7
    %9 = torch.aten.view %arg2, %0 : !torch.vtensor<[1,1,6],f32>, !torch.list<int> -> !torch.vtensor<[1,1,1,6],f32>
    %10 = torch.aten.permute %9, %1 : !torch.vtensor<[1,1,1,6],f32>, !torch.list<int> -> !torch.vtensor<[1,1,1,6],f32>
    %11 = torch.aten.view %10, %2 : !torch.vtensor<[1,1,1,6],f32>, !torch.list<int> -> !torch.vtensor<[1,1,6],f32>
    %12 = torch.aten.permute %arg1, %3 : !torch.vtensor<[1,2,3],f32>, !torch.list<int> -> !torch.vtensor<[2,1,3],f32>
    %13 = torch.aten.view %11, %0 : !torch.vtensor<[1,1,6],f32>, !torch.list<int> -> !torch.vtensor<[1,1,1,6],f32>
    %14 = torch.aten.view %12, %4 : !torch.vtensor<[2,1,3],f32>, !torch.list<int> -> !torch.vtensor<[2,1,1,3],f32>
    %15 = torch.aten.convolution %13, %14, %none, %5, %6, %5, %false, %7, %int1 : !torch.vtensor<[1,1,1,6],f32>, !torch.vtensor<[2,1,1,3],f32>, !torch.none, !torch.list<int>, !torch.list<int>, !torch.list<int>, !torch.bool, !torch.list<int>, !torch.int -> !torch.vtensor<[1,2,1,4],f32>
    %16 = torch.aten.view %15, %8 : !torch.vtensor<[1,2,1,4],f32>, !torch.list<int> -> !torch.vtensor<[1,2,4],f32>
    %17 = torch.aten.permute %16, %3 : !torch.vtensor<[1,2,4],f32>, !torch.list<int> -> !torch.vtensor<[2,1,4],f32>
    %18 = torch.aten.mul.Tensor %17, %17 : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,1,4],f32> -> !torch.vtensor<[2,1,4],f32>
    %19 = torch.aten.mul.Tensor %18, %17 : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,1,4],f32> -> !torch.vtensor<[2,1,4],f32>
    %20 = torch.aten.mul.Scalar %19, %float4.471500e-02 : !torch.vtensor<[2,1,4],f32>, !torch.float -> !torch.vtensor<[2,1,4],f32>
    %21 = torch.aten.add.Tensor %17, %20, %int1 : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,1,4],f32>, !torch.int -> !torch.vtensor<[2,1,4],f32>
    %22 = torch.aten.mul.Scalar %21, %float7.978850e-01 : !torch.vtensor<[2,1,4],f32>, !torch.float -> !torch.vtensor<[2,1,4],f32>
    %23 = torch.aten.tanh %22 : !torch.vtensor<[2,1,4],f32> -> !torch.vtensor<[2,1,4],f32>
    %24 = torch.aten.mul.Tensor %17, %17 : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,1,4],f32> -> !torch.vtensor<[2,1,4],f32>
    %25 = torch.aten.mul.Scalar %24, %float1.341450e-01 : !torch.vtensor<[2,1,4],f32>, !torch.float -> !torch.vtensor<[2,1,4],f32>
    %26 = torch.aten.add.Scalar %25, %float1.000000e00, %int1 : !torch.vtensor<[2,1,4],f32>, !torch.float, !torch.int -> !torch.vtensor<[2,1,4],f32>
    %27 = torch.aten.mul.Scalar %26, %float7.978850e-01 : !torch.vtensor<[2,1,4],f32>, !torch.float -> !torch.vtensor<[2,1,4],f32>
    %28 = torch.aten.mul.Tensor %23, %23 : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,1,4],f32> -> !torch.vtensor<[2,1,4],f32>
    %29 = torch.aten.rsub.Scalar %28, %float1.000000e00, %int1 : !torch.vtensor<[2,1,4],f32>, !torch.float, !torch.int -> !torch.vtensor<[2,1,4],f32>
    %30 = torch.aten.add.Scalar %23, %float1.000000e00, %int1 : !torch.vtensor<[2,1,4],f32>, !torch.float, !torch.int -> !torch.vtensor<[2,1,4],f32>
    %31 = torch.aten.mul.Scalar %30, %float5.000000e-01 : !torch.vtensor<[2,1,4],f32>, !torch.float -> !torch.vtensor<[2,1,4],f32>
    %32 = torch.aten.mul.Scalar %17, %float5.000000e-01 : !torch.vtensor<[2,1,4],f32>, !torch.float -> !torch.vtensor<[2,1,4],f32>
    %33 = torch.aten.mul.Tensor %32, %29 : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,1,4],f32> -> !torch.vtensor<[2,1,4],f32>
    %34 = torch.aten.mul.Tensor %33, %27 : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,1,4],f32> -> !torch.vtensor<[2,1,4],f32>
    %35 = torch.aten.add.Tensor %31, %34, %int1 : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,1,4],f32>, !torch.int -> !torch.vtensor<[2,1,4],f32>
    %36 = torch.aten.mul.Tensor %17, %35 : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,1,4],f32> -> !torch.vtensor<[2,1,4],f32>
    %37 = torch.prims.convert_element_type %36, %int7 : !torch.vtensor<[2,1,4],f32>, !torch.int -> !torch.vtensor<[2,1,4],f64>
    torch.overwrite.tensor.contents %37 overwrites %arg0 : !torch.vtensor<[2,1,4],f64>, !torch.tensor<[2,1,4],f64>
    return
  }
}
