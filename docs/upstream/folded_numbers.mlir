// Folded to true, and to 1.84467441E+19: 0.25 < 0 and 0.25 + -2.
func.func @main() -> (!torch.vtensor<[],i1>, !torch.vtensor<[],f32>) {
  %x = torch.vtensor.literal(dense<2.500000e-01> : tensor<f32>) : !torch.vtensor<[],f32>
  %zero = torch.constant.int 0
  %one = torch.constant.int 1
  %less = torch.constant.int -2
  %0 = torch.aten.lt.Scalar %x, %zero : !torch.vtensor<[],f32>, !torch.int -> !torch.vtensor<[],i1>
  %1 = torch.aten.add.Scalar %x, %less, %one : !torch.vtensor<[],f32>, !torch.int, !torch.int -> !torch.vtensor<[],f32>
  return %0, %1 : !torch.vtensor<[],i1>, !torch.vtensor<[],f32>
}
