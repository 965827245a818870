// Package relay has processes that quantize parts of a model share the way there.
//
// Each fits the layers of its part to what the original model makes of a text, and so has to know what the windows of that are
// before its first block. To walk there alone takes the last part nearly as long as the model takes without parts. But windows do
// not depend on each other: so each process takes some of them as far as any part begins, and leaves what they are on the way,
// at the first block of each part, in the folder that all share. Then it reads what it needs.
//
//	states-ID-BLOCK-GROUP           what a group of windows is before a block, whole
//	.walk-ID-GROUP-PARTofPARTS.X    a process is on its way with a group, or was when it was killed
//
// ID is of all that the states depend on. A file is a header that says what it is of; and for each window its numbers, little-endian
// float32, and the SHA-256 of these. What is not as it should be is removed and made again.
//
// Nothing is locked, nobody waits for what may not come, and no clock is compared: a process begins with groups of its own, takes
// those that nobody is on his way with, and at last also those that others have not finished, until all that it needs
// is there. Whoever makes a file makes the same bytes. Where the disk is full each walks by itself, as without a folder.
package relay
