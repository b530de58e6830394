// Package gate reads, compares, checks and writes trees: it is what stands between what a sandbox wrote and the host's files.
//
// A workspace is a host directory seen through an overlay. [Scan] records what the directory is like when it is mounted, in a
// [Manifest]; [Cover] hides what a [Mask] says may be a secret; [Base] keeps small files for later merges, and [Rebase] brings that
// up to date after something was applied. [Freeze] copies what the sandbox has written out of the overlay's
// upper layer, so that what is reviewed is what is applied. [Compare] says what has changed between the manifest and the frozen
// copy, and whether the host has moved meanwhile. The checks decide what may be applied, and apply, undo and recover write.
//
// Everything that is read is hostile: names, contents, attributes, and the order in which they change. So the functions that
// read trees run as jobs of package worker, which [Tool] starts; they are given descriptors, open what they need beneath them
// without following symlinks, and have bounds for everything. The exception is [Mark], which must run with the rights of the
// initial user namespace because the kernel shows overlay attributes to nobody else, and which only lists names.
//
// Nothing here knows of sandboxes, accounts or stores.
package gate
