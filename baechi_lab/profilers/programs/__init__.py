"""Programs without times - exported by torch.export or as ONNX - become graphs with estimated costs."""
