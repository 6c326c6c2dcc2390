module {
  func.func @main(%arg0: !torch.tensor<[2,1,2,2],bf16>, %arg1: !torch.vtensor<[1,1,2,2],f32>, %arg2: !torch.vtensor<[2,1,2,2],f32>) attributes {torch.assume_strict_symbolic_shapes} {
    %int7 = torch.constant.int 7
    %float0.000000e00 = torch.constant.float 0.000000e+00
    %int1 = torch.constant.int 1
    %int2 = torch.constant.int 2
    %0 = torch.prim.ListConstruct %int2, %int2 : (!torch.int, !torch.int) -> !torch.list<int>
    %1 = torch.prim.ListConstruct %int2, %int2, %int2 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %int0 = torch.constant.int 0
    %2 = torch.prim.ListConstruct %int1, %int0, %int2 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %int4 = torch.constant.int 4
    %3 = torch.prim.ListConstruct %int2, %int4 : (!torch.int, !torch.int) -> !torch.list<int>
    %4 = torch.prim.ListConstruct %int2, %int1, %int2, %int2 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %int15 = torch.constant.int 15
    %5 = torch.prims.convert_element_type %arg1, %int7 : !torch.vtensor<[1,1,2,2],f32>, !torch.int -> !torch.vtensor<[1,1,2,2],f64>
    %6 = torch.aten.add.Scalar %5, %float0.000000e00, %int1 : !torch.vtensor<[1,1,2,2],f64>, !torch.float, !torch.int -> !torch.vtensor<[1,1,2,2],f64>
    %7 = torch.prims.convert_element_type %arg2, %int7 : !torch.vtensor<[2,1,2,2],f32>, !torch.int -> !torch.vtensor<[2,1,2,2],f64>
    %8 = torch.aten.add.Scalar %7, %float0.000000e00, %int1 : !torch.vtensor<[2,1,2,2],f64>, !torch.float, !torch.int -> !torch.vtensor<[2,1,2,2],f64>
    %9 = torch.aten.view %6, %0 : !torch.vtensor<[1,1,2,2],f64>, !torch.list<int> -> !torch.vtensor<[2,2],f64>
    %10 = torch.aten.view %8, %1 : !torch.vtensor<[2,1,2,2],f64>, !torch.list<int> -> !torch.vtensor<[2,2,2],f64>
    %11 = torch.aten.permute %10, %2 : !torch.vtensor<[2,2,2],f64>, !torch.list<int> -> !torch.vtensor<[2,2,2],f64>
    %12 = torch.aten.view %11, %3 : !torch.vtensor<[2,2,2],f64>, !torch.list<int> -> !torch.vtensor<[2,4],f64>
    %13 = torch.aten.mm %9, %12 : !torch.vtensor<[2,2],f64>, !torch.vtensor<[2,4],f64> -> !torch.vtensor<[2,4],f64>
    %14 = torch.aten.view %13, %1 : !torch.vtensor<[2,4],f64>, !torch.list<int> -> !torch.vtensor<[2,2,2],f64>
    %15 = torch.aten.permute %14, %2 : !torch.vtensor<[2,2,2],f64>, !torch.list<int> -> !torch.vtensor<[2,2,2],f64>
    %16 = torch.aten.view %15, %4 : !torch.vtensor<[2,2,2],f64>, !torch.list<int> -> !torch.vtensor<[2,1,2,2],f64>
    %17 = torch.prims.convert_element_type %16, %int15 : !torch.vtensor<[2,1,2,2],f64>, !torch.int -> !torch.vtensor<[2,1,2,2],bf16>
    torch.overwrite.tensor.contents %17 overwrites %arg0 : !torch.vtensor<[2,1,2,2],bf16>, !torch.tensor<[2,1,2,2],bf16>
    return
  }
}
