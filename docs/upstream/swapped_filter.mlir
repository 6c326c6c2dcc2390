module {
  func.func @main(%arg0: !torch.tensor<[1,6,8,8],f16>, %arg1: !torch.vtensor<[1,8,9,9],f16>, %arg2: !torch.vtensor<[6,8,2,2],f16>) attributes {torch.assume_strict_symbolic_shapes} {
    %int0 = torch.constant.int 0
    %int1 = torch.constant.int 1
    %int3 = torch.constant.int 3
    %int2 = torch.constant.int 2
    %0 = torch.prim.ListConstruct %int0, %int1, %int3, %int2 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %none = torch.constant.none
    %1 = torch.prim.ListConstruct %int1, %int1 : (!torch.int, !torch.int) -> !torch.list<int>
    %2 = torch.prim.ListConstruct %int0, %int0 : (!torch.int, !torch.int) -> !torch.list<int>
    %false = torch.constant.bool false
    %3 = torch.prim.ListConstruct  : () -> !torch.list<int>
    %int5 = torch.constant.int 5
    %4 = torch.aten.permute %arg2, %0 : !torch.vtensor<[6,8,2,2],f16>, !torch.list<int> -> !torch.vtensor<[6,8,2,2],f16>
    %5 = torch.aten.convolution %arg1, %4, %none, %1, %2, %1, %false, %3, %int1 : !torch.vtensor<[1,8,9,9],f16>, !torch.vtensor<[6,8,2,2],f16>, !torch.none, !torch.list<int>, !torch.list<int>, !torch.list<int>, !torch.bool, !torch.list<int>, !torch.int -> !torch.vtensor<[1,6,8,8],f32>
    %6 = torch.prims.convert_element_type %5, %int5 : !torch.vtensor<[1,6,8,8],f32>, !torch.int -> !torch.vtensor<[1,6,8,8],f16>
    torch.overwrite.tensor.contents %6 overwrites %arg0 : !torch.vtensor<[1,6,8,8],f16>, !torch.tensor<[1,6,8,8],f16>
    return
  }
}
