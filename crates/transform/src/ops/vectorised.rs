//! Functions compiled for the processor's vector instructions.

/// Compiles a function a second time for x86-64 processors with AVX2 and FMA, and calls that one
/// where they exist. There `f32::mul_add` is one instruction; elsewhere it computes the same bits
/// slowly.
macro_rules! vectorised {
    ($(#[$attribute:meta])* $visible:vis fn $name:ident($($argument:ident: $kind:ty),* $(,)?)
     $(-> $result:ty)? $body:block) => {
        $(#[$attribute])*
        $visible fn $name($($argument: $kind),*) $(-> $result)? {
            #[inline(always)]
            fn body($($argument: $kind),*) $(-> $result)? $body

            #[cfg(target_arch = "x86_64")]
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                #[target_feature(enable = "avx2,fma")]
                fn compiled_for_avx2($($argument: $kind),*) $(-> $result)? {
                    body($($argument),*)
                }
                // SAFETY: the processor has both features.
                return unsafe { compiled_for_avx2($($argument),*) };
            }
            body($($argument),*)
        }
    };
}

pub(crate) use vectorised;
