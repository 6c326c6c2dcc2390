module {
  func.func @main(%arg0: !torch.tensor<[1,10,7,3],f16>, %arg1: !torch.vtensor<[1,6,7,3],f16>, %arg2: !torch.vtensor<[6,5,1,1],f16>) attributes {torch.assume_strict_symbolic_shapes} {
    %int2 = torch.constant.int 2
    %int3 = torch.constant.int 3
    %int5 = torch.constant.int 5
    %int1 = torch.constant.int 1
    %0 = torch.prim.ListConstruct %int2, %int3, %int5, %int1, %int1 : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %int0 = torch.constant.int 0
    %int4 = torch.constant.int 4
    %1 = torch.prim.ListConstruct %int0, %int2, %int1, %int3, %int4 : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %int10 = torch.constant.int 10
    %2 = torch.prim.ListConstruct %int10, %int3, %int1, %int1 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %none = torch.constant.none
    %3 = torch.prim.ListConstruct %int1, %int1 : (!torch.int, !torch.int) -> !torch.list<int>
    %4 = torch.prim.ListConstruct %int0, %int0 : (!torch.int, !torch.int) -> !torch.list<int>
    %false = torch.constant.bool false
    %5 = torch.prim.ListConstruct  : () -> !torch.list<int>
    %6 = torch.aten.view %arg2, %0 : !torch.vtensor<[6,5,1,1],f16>, !torch.list<int> -> !torch.vtensor<[2,3,5,1,1],f16>
    %7 = torch.aten.permute %6, %1 : !torch.vtensor<[2,3,5,1,1],f16>, !torch.list<int> -> !torch.vtensor<[2,5,3,1,1],f16>
    %8 = torch.aten.view %7, %2 : !torch.vtensor<[2,5,3,1,1],f16>, !torch.list<int> -> !torch.vtensor<[10,3,1,1],f16>
    %9 = torch.aten.convolution %arg1, %8, %none, %3, %4, %3, %false, %5, %int2 : !torch.vtensor<[1,6,7,3],f16>, !torch.vtensor<[10,3,1,1],f16>, !torch.none, !torch.list<int>, !torch.list<int>, !torch.list<int>, !torch.bool, !torch.list<int>, !torch.int -> !torch.vtensor<[1,10,7,3],f32>
    %10 = torch.prims.convert_element_type %9, %int5 : !torch.vtensor<[1,10,7,3],f32>, !torch.int -> !torch.vtensor<[1,10,7,3],f16>
    torch.overwrite.tensor.contents %10 overwrites %arg0 : !torch.vtensor<[1,10,7,3],f16>, !torch.tensor<[1,10,7,3],f16>
    return
  }
}
