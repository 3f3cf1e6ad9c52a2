"""Analysis: what condensing changed, as plots and figures made from run folders."""
