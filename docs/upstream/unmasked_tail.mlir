module {
  func.func @main(%arg0: !torch.tensor<[2,96,5,2],f16>, %arg1: !torch.vtensor<[2,13,5,2],f16>, %arg2: !torch.vtensor<[96,13,1,1],f16>) attributes {torch.assume_strict_symbolic_shapes} {
    %none = torch.constant.none
    %int1 = torch.constant.int 1
    %0 = torch.prim.ListConstruct %int1, %int1 : (!torch.int, !torch.int) -> !torch.list<int>
    %int0 = torch.constant.int 0
    %1 = torch.prim.ListConstruct %int0, %int0 : (!torch.int, !torch.int) -> !torch.list<int>
    %false = torch.constant.bool false
    %2 = torch.prim.ListConstruct  : () -> !torch.list<int>
    %int5 = torch.constant.int 5
    %3 = torch.aten.convolution %arg1, %arg2, %none, %0, %1, %0, %false, %2, %int1 : !torch.vtensor<[2,13,5,2],f16>, !torch.vtensor<[96,13,1,1],f16>, !torch.none, !torch.list<int>, !torch.list<int>, !torch.list<int>, !torch.bool, !torch.list<int>, !torch.int -> !torch.vtensor<[2,96,5,2],f32>
    %4 = torch.prims.convert_element_type %3, %int5 : !torch.vtensor<[2,96,5,2],f32>, !torch.int -> !torch.vtensor<[2,96,5,2],f16>
    torch.overwrite.tensor.contents %4 overwrites %arg0 : !torch.vtensor<[2,96,5,2],f16>, !torch.tensor<[2,96,5,2],f16>
    return
  }
}
