// The statuses of CANN that the runtime returns beside those in hostcann.h, with the values that
// CANN documents.
#pragma once

namespace hostcann::runtime {

inline constexpr int kUninitialized = 100001;
inline constexpr int kRepeatInitialize = 100002;
inline constexpr int kInvalidFile = 100003;
inline constexpr int kRepeatFinalize = 100037;
inline constexpr int kInvalidDevice = 107001;
inline constexpr int kContextNull = 107002;
inline constexpr int kEventTimestampInvalid = 107006;
inline constexpr int kInvalidHandle = 107017;
inline constexpr int kStreamUnjoined = 107025;
inline constexpr int kStreamCaptured = 107027;
inline constexpr int kEventCaptured = 107028;
inline constexpr int kStreamNotCaptured = 107029;
inline constexpr int kCaptureModeNotSupported = 107030;
inline constexpr int kTaskGroupStatus = 107031;
inline constexpr int kCaptureUnmatched = 107036;
inline constexpr int kCaptureWrongThread = 107038;
inline constexpr int kFeatureNotSupported = 207000;
inline constexpr int kSchedulerError = 507001;  // what an injected synchronisation fault reports
inline constexpr int kStreamSyncTimeout = 507046;
inline constexpr int kCopyFailed = 507052;
inline constexpr int kCaptureInvalidated = 507903;

}  // namespace hostcann::runtime
