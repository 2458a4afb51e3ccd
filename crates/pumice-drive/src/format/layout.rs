//! One definition for a structure's bytes: the struct that is read and written, its size as a
//! compile-time assertion, and its table of fields, which a test holds against `docs/format.md`.
//!
//! All integers are little-endian and unaligned, so a structure can stand at any byte.

/// A field as `docs/format.md` lists it: offset in bytes, length in bytes, name.
pub type Field = (usize, usize, &'static str);

/// Defines a `repr(C)` structure of exactly `$bytes` bytes with a `FIELDS` table.
macro_rules! layout {
    ($(#[$doc:meta])* struct $name:ident: $bytes:literal { $($field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy,
            zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable,
            zerocopy::KnownLayout, zerocopy::Unaligned,
        )]
        #[repr(C)]
        pub(super) struct $name { $(pub(super) $field: $type,)* }

        const _: () = assert!(size_of::<$name>() == $bytes);

        impl $name {
            pub(super) const FIELDS: &[$crate::format::layout::Field] = &[
                $((std::mem::offset_of!($name, $field), size_of::<$type>(), stringify!($field)),)*
            ];
        }
    };
}
pub(super) use layout;
