namespace assay {}
