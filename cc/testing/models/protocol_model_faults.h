#ifndef JAX_CXL_TESTING_MODELS_PROTOCOL_MODEL_FAULTS_H_
#define JAX_CXL_TESTING_MODELS_PROTOCOL_MODEL_FAULTS_H_

#include <cstdint>
#include <string_view>

namespace jax_cxl::comm::model {

// What a broken variant of the model leaves out.
enum class Fault : uint8_t {
  kNone,
  kSlotPublish,
  kSlotAcquire,
  kPublishedWait,
  kReleasedWait,         // before a slot is filled from the input,
  kResultWait,           // or with what came from other slots
  kReleaseAfterReading,  // released as soon as the doorbell was seen
  kSubmissionPublish,
  kSubmissionAcquire,
  kSubmissionsReadWait,
  kAnnouncementPublish,
  kAnnouncementAcquire,
  kAnnouncementWait,
  kAbort,         // who gives up tells nobody
  kAbortPublish,  // nor why
  kWaitingFor,    // who waits for a place in a ring does not know whom to watch
  kSecondLook,    // at what a peer did last before it left
  kCompare        // a call is taken for mine
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
