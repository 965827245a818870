// Package outdir makes an output folder appear whole or not at all, and loses nothing that a user has.
//
// Whoever writes a folder builds it in a [Work]. [Work.Install] puts it in its place.
//
// While OUT is being made, the folder OUT.partial stands beside it:
//
//	OUT.partial/.lutq   its mark and lock: that it belongs to lutq and to OUT, and the plan carried out
//	OUT.partial/new     the folder being built, which becomes OUT
//	OUT.partial/old     OUT as it was, for a moment, where two names cannot be exchanged in one step
//
// together with files that an interrupted run goes on from. Several processes that make parts of OUT put these in OUT.parts
// before, which has a mark too, see [Parts]. Nothing ever lies elsewhere. So a run that is killed at any
// moment leaves nothing else, and the next run with the same OUT goes on with it or cleans it up. A folder of that name
// without the mark belongs to somebody else, and is an error.
//
// A finished folder has a mark too, the file .lutq. Its first line lists what was written; the rest is what is left to
// do. A folder is replaced only if it has a mark and holds nothing else than that lists.
package outdir
