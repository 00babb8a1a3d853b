"""The data plane: HTTP requests in, decisions carried out, answers relayed byte for byte."""
