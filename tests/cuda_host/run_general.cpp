// general.cu for the host: the tests call its kernels through run(), which picks them by number of arguments.
#include <math.h>
#include "general.cu"
#include <tuple>

template <class... Parameters>
static void launch(void (*kernel)(Parameters...), void** arguments) {
    std::tuple<Parameters...> values;
    [&]<size_t... I>(std::index_sequence<I...>) {
        ((std::get<I>(values) = *static_cast<std::tuple_element_t<I, std::tuple<Parameters...>>*>(arguments[I])), ...);
    }(std::index_sequence_for<Parameters...>{});
    constexpr int BLOCKS = 3, THREADS = 64;
    for (int b = 0; b < BLOCKS; b++)
        emulation::run_block(b, BLOCKS, THREADS, 0, [=] { std::apply(kernel, values); });
}

extern "C" void run_products(void** arguments) { launch(products, arguments); }
extern "C" void run_window_and_embed(void** arguments) { launch(window_and_embed, arguments); }
extern "C" void run_pool(void** arguments) { launch(pool, arguments); }
extern "C" void run_place(void** arguments) { launch(place, arguments); }
extern "C" void run_head(void** arguments) { launch(head, arguments); }
