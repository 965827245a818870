package bundled

// digest is that of the text.
const digest = "d9e0c7acaf78b3755a048a64a5625d41d37438b5529638434a8dbc9fac08c1b5"
