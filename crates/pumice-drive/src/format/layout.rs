//! Defines the bytes of a structure in one place: the struct that is read and written, a
//! compile-time assertion of its size, and the table of its fields, which a test compares with
//! `docs/format.md`.
//!
//! All integers are little-endian and unaligned, so a structure can start at any byte.

/// A field in the form of `docs/format.md`: offset in bytes, length in bytes, name.
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
