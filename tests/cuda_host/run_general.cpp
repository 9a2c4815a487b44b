// general.cu for the host: one entrance for each kernel, which returns what went wrong, if anything did.
#include <math.h>
#include "general.cu"
#include <tuple>

template <class... Parameters>
static const char* launch(void (*kernel)(Parameters...), void** arguments) {
    std::tuple<Parameters...> values;
    [&]<size_t... I>(std::index_sequence<I...>) {
        ((std::get<I>(values) = *static_cast<std::tuple_element_t<I, std::tuple<Parameters...>>*>(arguments[I])), ...);
    }(std::index_sequence_for<Parameters...>{});
    constexpr int BLOCKS = 3, THREADS = 64;
    return emulation::launch({.last_first = true}, BLOCKS, THREADS, 0, [=] { std::apply(kernel, values); });
}

extern "C" const char* run_products(void** arguments) { return launch(products, arguments); }
extern "C" const char* run_window_and_embed(void** arguments) { return launch(window_and_embed, arguments); }
extern "C" const char* run_pool(void** arguments) { return launch(pool, arguments); }
extern "C" const char* run_place(void** arguments) { return launch(place, arguments); }
extern "C" const char* run_head(void** arguments) { return launch(head, arguments); }
