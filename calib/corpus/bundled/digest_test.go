package bundled

// digest is that of the text.
const digest = "f376c49032af0f6ec1a5ff218d1cb05b032bfbe68781eea7f3300b696ec63a88"
