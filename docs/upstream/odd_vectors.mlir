module {
  func.func @main(%arg0: !torch.tensor<[4,65],f16>, %arg1: !torch.vtensor<[4,7],f16>, %arg2: !torch.vtensor<[7,65],f16>) attributes {torch.assume_strict_symbolic_shapes} {
    %int5 = torch.constant.int 5
    %0 = torch.aten.mm %arg1, %arg2 : !torch.vtensor<[4,7],f16>, !torch.vtensor<[7,65],f16> -> !torch.vtensor<[4,65],f32>
    %1 = torch.prims.convert_element_type %0, %int5 : !torch.vtensor<[4,65],f32>, !torch.int -> !torch.vtensor<[4,65],f16>
    torch.overwrite.tensor.contents %1 overwrites %arg0 : !torch.vtensor<[4,65],f16>, !torch.tensor<[4,65],f16>
    return
  }
}
