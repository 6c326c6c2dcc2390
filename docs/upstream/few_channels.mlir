module {
  func.func @main(%arg0: !torch.tensor<[2,2,33],f32>, %arg1: !torch.vtensor<[2,17,31],f32>, %arg2: !torch.vtensor<[2,17,3],f32>) attributes {torch.assume_strict_symbolic_shapes} {
    %int2 = torch.constant.int 2
    %int17 = torch.constant.int 17
    %int1 = torch.constant.int 1
    %int31 = torch.constant.int 31
    %0 = torch.prim.ListConstruct %int2, %int17, %int1, %int31 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %int3 = torch.constant.int 3
    %1 = torch.prim.ListConstruct %int2, %int17, %int1, %int3 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %none = torch.constant.none
    %2 = torch.prim.ListConstruct %int1, %int1 : (!torch.int, !torch.int) -> !torch.list<int>
    %int0 = torch.constant.int 0
    %3 = torch.prim.ListConstruct %int0, %int2 : (!torch.int, !torch.int) -> !torch.list<int>
    %false = torch.constant.bool false
    %4 = torch.prim.ListConstruct  : () -> !torch.list<int>
    %int33 = torch.constant.int 33
    %5 = torch.prim.ListConstruct %int2, %int2, %int33 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
    %6 = torch.aten.view %arg1, %0 : !torch.vtensor<[2,17,31],f32>, !torch.list<int> -> !torch.vtensor<[2,17,1,31],f32>
    %7 = torch.aten.view %arg2, %1 : !torch.vtensor<[2,17,3],f32>, !torch.list<int> -> !torch.vtensor<[2,17,1,3],f32>
    %8 = torch.aten.convolution %6, %7, %none, %2, %3, %2, %false, %4, %int1 : !torch.vtensor<[2,17,1,31],f32>, !torch.vtensor<[2,17,1,3],f32>, !torch.none, !torch.list<int>, !torch.list<int>, !torch.list<int>, !torch.bool, !torch.list<int>, !torch.int -> !torch.vtensor<[2,2,1,33],f32>
    %9 = torch.aten.view %8, %5 : !torch.vtensor<[2,2,1,33],f32>, !torch.list<int> -> !torch.vtensor<[2,2,33],f32>
    torch.overwrite.tensor.contents %9 overwrites %arg0 : !torch.vtensor<[2,2,33],f32>, !torch.tensor<[2,2,33],f32>
    return
  }
}
