func.func @two_convs(
    %arg0: !torch.vtensor<[1,3,32,32],f32>,
    %arg1: !torch.vtensor<[16,3,3,3],f32>,
    %arg2: !torch.vtensor<[16],f32>,
    %arg3: !torch.vtensor<[32,16,3,3],f32>,
    %arg4: !torch.vtensor<[32],f32>)
    -> !torch.vtensor<[1,32,28,28],f32>
    attributes {torch.onnx_meta.opset_version = 14 : si64} {
  %int1 = torch.constant.int 1
  %int0 = torch.constant.int 0
  %stride = torch.prim.ListConstruct %int1, %int1
      : (!torch.int, !torch.int) -> !torch.list<int>
  %padding = torch.prim.ListConstruct %int0, %int0
      : (!torch.int, !torch.int) -> !torch.list<int>
  %dilation = torch.prim.ListConstruct %int1, %int1
      : (!torch.int, !torch.int) -> !torch.list<int>
  %0 = torch.aten.conv2d %arg0, %arg1, %arg2,
      %stride, %padding, %dilation, %int1
      : !torch.vtensor<[1,3,32,32],f32>, !torch.vtensor<[16,3,3,3],f32>,
        !torch.vtensor<[16],f32>, !torch.list<int>, !torch.list<int>,
        !torch.list<int>, !torch.int
      -> !torch.vtensor<[1,16,30,30],f32>
  %1 = torch.aten.conv2d %0, %arg3, %arg4,
      %stride, %padding, %dilation, %int1
      : !torch.vtensor<[1,16,30,30],f32>, !torch.vtensor<[32,16,3,3],f32>,
        !torch.vtensor<[32],f32>, !torch.list<int>, !torch.list<int>,
        !torch.list<int>, !torch.int
      -> !torch.vtensor<[1,32,28,28],f32>
  return %1 : !torch.vtensor<[1,32,28,28],f32>
}
