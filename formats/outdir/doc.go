// Package outdir brings output folders into being, so that nothing that a user
// has is lost: whatever writes a folder builds it in a [Work], and
// [Work.Install] puts it in its place.
//
// While OUT is being made, the folder OUT.partial stands beside it:
//
//	OUT.partial/.lutq   its mark and lock: that it belongs to lutq and to OUT, and the plan carried out
//	OUT.partial/new     the folder being built, which becomes OUT
//	OUT.partial/old     OUT as it was, for a moment, where two names cannot be exchanged in one step
//
// together with files that an interrupted run goes on from. All that ever lies
// outside of OUT lies there, so that a run killed at any moment leaves nothing
// else, and the next one with the same OUT goes on with it or cleans it up. A
// folder of that name without the mark is somebody else's, and an error.
//
// A finished folder has a mark too: the file .lutq, which lists what was
// written on its first line; what follows is left to do. Only a folder that has it, and nothing besides what it lists, is
// ever replaced.
package outdir
