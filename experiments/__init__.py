"""The paper's tables and figures, one file each; results are JSON, documents are rendered from them."""
