#ifndef JAX_CXL_TESTING_MODELS_PROTOCOL_MODEL_FAULTS_H_
#define JAX_CXL_TESTING_MODELS_PROTOCOL_MODEL_FAULTS_H_

#include <cstdint>
#include <string_view>

namespace jax_cxl::comm::model {

// The operation that a broken variant of the model leaves out or does wrong.
enum class Fault : uint8_t {
  kNone,
  kSlotPublish,
  kSlotAcquire,
  kPublishedWait,
  kReleasedWait,         // the wait before a slot is filled from the input
  kResultWait,           // the wait before a slot is filled with results
  kReleaseAfterReading,  // a rank releases as soon as it sees the doorbell
  kSubmissionPublish,
  kSubmissionAcquire,
  kSubmissionsReadWait,
  kAnnouncementPublish,
  kAnnouncementAcquire,
  kAnnouncementWait,
  kAbort,         // a rank that gives up tells no other rank
  kAbortPublish,  // its reason is not published
  kWaitingFor,    // a rank with a full ring watches no member
  kSecondLook,    // the second look for a message of a peer that left
  kCompare        // the comparison of calls
};

inline constexpr std::string_view kFaultNames[] = {"Nothing",
                                                   "SlotPublish",
                                                   "SlotAcquire",
                                                   "PublishedWait",
                                                   "ReleasedWait",
                                                   "ResultWait",
                                                   "ReleaseAfterReading",
                                                   "SubmissionPublish",
                                                   "SubmissionAcquire",
                                                   "SubmissionsReadWait",
                                                   "AnnouncementPublish",
                                                   "AnnouncementAcquire",
                                                   "AnnouncementWait",
                                                   "Abort",
                                                   "AbortPublish",
                                                   "WaitingFor",
                                                   "SecondLook",
                                                   "Compare"};
inline std::string_view FaultName(Fault fault) {
  return kFaultNames[static_cast<int>(fault)];
}

}  // namespace jax_cxl::comm::model

#endif  // JAX_CXL_TESTING_MODELS_PROTOCOL_MODEL_FAULTS_H_
