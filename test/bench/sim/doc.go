// Package sim reports what the lanes reach in simulation, beside no limit, the best static limit, one queue for all, and
// failsafe-go's adaptive limiter, on the same upstreams and the same requests. Package internal/sim describes the models; the
// report is `make sim`.
package sim
