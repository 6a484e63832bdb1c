#pragma once

#include <memory>
#include <type_traits>
#include <utility>

namespace assay::tokenization {

template <class Signature>
class FunctionRef;

/// A non-owning reference to a callable; valid as long as the callable. One indirect call and no
/// allocation, for sinks that are called once a word.
template <class Result, class... Arguments>
class FunctionRef<Result(Arguments...)> {
 public:
  // The constraint keeps copies out.
  template <class Callable>
  requires(!std::is_same_v<std::remove_cvref_t<Callable>, FunctionRef>)
      FunctionRef(Callable&& callable)  // NOLINT(bugprone-forwarding-reference-overload)
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(callable)))),
        call_([](void* object, Arguments... arguments) -> Result {
          return (*static_cast<std::add_pointer_t<Callable>>(object))(
              std::forward<Arguments>(arguments)...);
        }) {}

  Result operator()(Arguments... arguments) const {
    return call_(object_, std::forward<Arguments>(arguments)...);
  }

 private:
  void* object_;
  Result (*call_)(void*, Arguments...);
};

}  // namespace assay::tokenization
