module {
  func.func @main(%arg0: !torch.tensor<[4,31,32,2],f16>, %arg1: !torch.vtensor<[4,30,16,1],f16>, %arg2: !torch.vtensor<[32,2,2,16],f16>) attributes {torch.assume_strict_symbolic_shapes} {
    %int0 = torch.constant.int 0
    %int2 = torch.constant.int 2
    %int3 = torch.constant.int 3
    %int1 = torch.constant.int 1
    %0 = torch.prim.ListConstruct %int0, %int2, %int3, %int1 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %1 = torch.prim.ListConstruct %int0, %int3, %int1, %int2 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %none = torch.constant.none
    %2 = torch.prim.ListConstruct %int1, %int1 : (!torch.int, !torch.int) -> !torch.list<int>
    %false = torch.constant.bool false
    %3 = torch.prim.ListConstruct  : () -> !torch.list<int>
    %int5 = torch.constant.int 5
    %4 = torch.aten.permute %arg1, %0 : !torch.vtensor<[4,30,16,1],f16>, !torch.list<int> -> !torch.vtensor<[4,16,1,30],f16>
    %5 = torch.aten.permute %arg2, %1 : !torch.vtensor<[32,2,2,16],f16>, !torch.list<int> -> !torch.vtensor<[32,16,2,2],f16>
    %6 = torch.aten.convolution %4, %5, %none, %2, %2, %2, %false, %3, %int1 : !torch.vtensor<[4,16,1,30],f16>, !torch.vtensor<[32,16,2,2],f16>, !torch.none, !torch.list<int>, !torch.list<int>, !torch.list<int>, !torch.bool, !torch.list<int>, !torch.int -> !torch.vtensor<[4,32,2,31],f32>
    %7 = torch.prims.convert_element_type %6, %int5 : !torch.vtensor<[4,32,2,31],f32>, !torch.int -> !torch.vtensor<[4,32,2,31],f16>
    %8 = torch.aten.permute %7, %1 : !torch.vtensor<[4,32,2,31],f16>, !torch.list<int> -> !torch.vtensor<[4,31,32,2],f16>
    torch.overwrite.tensor.contents %8 overwrites %arg0 : !torch.vtensor<[4,31,32,2],f16>, !torch.tensor<[4,31,32,2],f16>
    return
  }
}
