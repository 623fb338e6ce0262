package budget

// Size is a number of bytes. In text it is a plain integer or one with a unit: KiB, MiB, GiB, TiB (powers of 1024) or
// KB, MB, GB, TB (powers of 1000).
type Size int64
