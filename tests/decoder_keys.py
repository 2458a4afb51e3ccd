"""The keys and ciphers of an encrypted drive, for decoder.py: written from docs/format.md and the
standards that it names alone.

AES comes from the package `cryptography` if it is installed, else from the slow implementation
below; modes and MACs are always those below. Only passphrases need `argon2` (argon2-cffi).
"""

import hashlib
import hmac
import struct

try:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
except ImportError:
    Cipher = None

DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
SLOTS, SLOT = 8, 128


class Refused(Exception):
    """The secret opens no key slot, or bytes are not authentic."""


def xtime(value):
    return (value << 1 ^ (0x11B if value & 0x80 else 0)) & 0xFF


def multiplied(one, other):
    """Multiplies in the field of AES."""
    product = 0
    while other:
        if other & 1:
            product ^= one
        one, other = xtime(one), other >> 1
    return product


def boxes():
    sbox, value, inverse = [0x63] * 256, 1, 1
    for _ in range(255):
        # `value` runs through all powers of 3, and `inverse` through the powers of its inverse.
        value ^= xtime(value)
        for shift in (1, 2, 4):
            inverse ^= inverse << shift & 0xFF
        if inverse & 0x80:
            inverse ^= 0x09
        rotated = [(inverse << n | inverse >> 8 - n) & 0xFF for n in range(5)]
        sbox[value] = rotated[0] ^ rotated[1] ^ rotated[2] ^ rotated[3] ^ rotated[4] ^ 0x63
    back = [0] * 256
    for index, byte in enumerate(sbox):
        back[byte] = index
    return sbox, back


SBOX, BACK = boxes()
ROWS = [(4 * (n // 4 + n % 4) + n % 4) % 16 for n in range(16)]
BY = {factor: [multiplied(value, factor) for value in range(256)]
      for factor in (2, 3, 9, 11, 13, 14)}


class PlainAes:
    """AES-256 of one block, FIPS 197."""

    def __init__(self, key):
        words = [list(key[at:at + 4]) for at in range(0, 32, 4)]
        constant = 1
        for index in range(8, 60):
            word = list(words[-1])
            if index % 8 == 0:
                word = [SBOX[byte] for byte in word[1:] + word[:1]]
                word[0] ^= constant
                constant = xtime(constant)
            elif index % 8 == 4:
                word = [SBOX[byte] for byte in word]
            words.append([a ^ b for a, b in zip(word, words[-8])])
        self.rounds = [sum(words[at:at + 4], []) for at in range(0, 60, 4)]

    def encrypt(self, block):
        state = [a ^ b for a, b in zip(block, self.rounds[0])]
        for number in range(1, 15):
            state = [SBOX[state[at]] for at in ROWS]
            if number < 14:
                mixed = []
                for at in range(0, 16, 4):
                    a, b, c, d = state[at:at + 4]
                    mixed += [BY[2][a] ^ BY[3][b] ^ c ^ d, a ^ BY[2][b] ^ BY[3][c] ^ d,
                              a ^ b ^ BY[2][c] ^ BY[3][d], BY[3][a] ^ b ^ c ^ BY[2][d]]
                state = mixed
            state = [a ^ b for a, b in zip(state, self.rounds[number])]
        return bytes(state)

    def decrypt(self, block):
        state = [a ^ b for a, b in zip(block, self.rounds[14])]
        for number in range(13, -1, -1):
            moved = [0] * 16
            for target, at in enumerate(ROWS):
                moved[at] = BACK[state[target]]
            state = [a ^ b for a, b in zip(moved, self.rounds[number])]
            if number:
                mixed = []
                for at in range(0, 16, 4):
                    a, b, c, d = state[at:at + 4]
                    mixed += [BY[14][a] ^ BY[11][b] ^ BY[13][c] ^ BY[9][d],
                              BY[9][a] ^ BY[14][b] ^ BY[11][c] ^ BY[13][d],
                              BY[13][a] ^ BY[9][b] ^ BY[14][c] ^ BY[11][d],
                              BY[11][a] ^ BY[13][b] ^ BY[9][c] ^ BY[14][d]]
                state = mixed
        return bytes(state)


class FastAes:
    """AES-256 of one block, by the package `cryptography`."""

    def __init__(self, key):
        cipher = Cipher(algorithms.AES(bytes(key)), modes.ECB())
        self.encrypt, self.decrypt = cipher.encryptor().update, cipher.decryptor().update


Aes = PlainAes if Cipher is None else FastAes


def xor(one, other):
    return bytes(a ^ b for a, b in zip(one, other))


def hkdf(secret, salt, label):
    """RFC 5869, 32 bytes."""
    extracted = hmac.new(salt, secret, hashlib.sha256).digest()
    return hmac.new(extracted, label.encode() + b"\x01", hashlib.sha256).digest()


def cmac(aes, data):
    """RFC 4493, with AES-256, of at least one byte."""
    def doubled(block):
        number = int.from_bytes(block, "big") << 1
        return (number & (1 << 128) - 1 ^ (0x87 if number >> 128 else 0)).to_bytes(16, "big")

    key, end = doubled(aes.encrypt(bytes(16))), (len(data) - 1) // 16 * 16
    last = data[end:]
    if len(last) < 16:
        key, last = doubled(key), (last + b"\x80").ljust(16, b"\0")
    state = bytes(16)
    for at in range(0, end, 16):
        state = aes.encrypt(xor(state, data[at:at + 16]))
    return aes.encrypt(xor(xor(state, last), key))


def xts_decrypt(aes, tweaks, tweak, unit):
    """IEEE 1619, with ciphertext stealing."""
    mask = int.from_bytes(tweaks.encrypt(tweak), "little")
    masks = [mask]
    for _ in range(len(unit) // 16):
        mask = mask << 1 & (1 << 128) - 1 ^ (0x87 if mask >> 127 else 0)
        masks.append(mask)

    def block(mask, data):
        mask = mask.to_bytes(16, "little")
        return xor(aes.decrypt(xor(data, mask)), mask)

    whole, rest = divmod(len(unit), 16)
    blocks = [unit[at:at + 16] for at in range(0, whole * 16, 16)]
    if not rest:
        return b"".join(block(mask, data) for mask, data in zip(masks, blocks))
    clear = [block(mask, data) for mask, data in zip(masks, blocks[:-1])]
    stolen = block(masks[whole], blocks[-1])
    last = block(masks[whole - 1], unit[whole * 16:] + stolen[rest:])
    return b"".join(clear) + last + stolen[:rest]


def polyval(key, data):
    """RFC 8452, section 3: sums and products in GF(2^128), the lowest bit first."""
    field = 1 << 128 | 1 << 127 | 1 << 126 | 1 << 121 | 1
    # Multiplies by x^-128, as POLYVAL does.
    inverse = 1 << 127 | 1 << 124 | 1 << 121 | 1 << 114 | 1

    def product(one, other):
        total = 0
        while other:
            low = other & -other
            total ^= one * low
            other ^= low
        for bit in range(total.bit_length() - 1, 127, -1):
            if total >> bit & 1:
                total ^= field << bit - 128
        return total

    key = product(int.from_bytes(key, "little"), inverse)
    nibbles = [[product(key, value << 4 * at) for value in range(16)] for at in range(32)]
    state = 0
    for at in range(0, len(data), 16):
        state ^= int.from_bytes(data[at:at + 16], "little")
        state, left = 0, state
        for table in nibbles:
            state ^= table[left & 15]
            left >>= 4
    return state.to_bytes(16, "little")


def gcm_siv_open(key, nonce, sealed, bound):
    """Returns the plaintext, per RFC 8452.

    Raises Refused if the ciphertext is not authentic.
    """
    aes = Aes(key)
    derived = [aes.encrypt(struct.pack("<I", n) + nonce)[:8] for n in range(6)]
    authentication, encryption = b"".join(derived[:2]), Aes(b"".join(derived[2:]))
    data, tag = sealed[:-16], sealed[-16:]
    counter, = struct.unpack("<I", tag[:4])
    rest = tag[4:15] + bytes([tag[15] | 0x80])
    stream = bytearray()
    while len(stream) < len(data):
        stream += encryption.encrypt(struct.pack("<I", counter) + rest)
        counter = counter + 1 & 0xFFFFFFFF
    size = len(data)
    clear = (int.from_bytes(data, "little")
             ^ int.from_bytes(stream[:size], "little")).to_bytes(size, "little")
    lengths = struct.pack("<QQ", 8 * len(bound), 8 * len(clear))
    padded = bound + bytes(-len(bound) % 16) + clear + bytes(-len(clear) % 16) + lengths
    sums = xor(polyval(authentication, padded), nonce.ljust(16, b"\0"))
    if encryption.encrypt(sums[:15] + bytes([sums[15] & 0x7F])) != tag:
        raise Refused("a payload is not authentic")
    return clear


def recovery_code(text):
    """Returns the 32 bytes of a recovery code."""
    digits = [character for character in text.upper() if character not in "- \n"]
    if len(digits) != 56 or any(digit not in DIGITS for digit in digits):
        raise Refused("that is no recovery code")
    number = 0
    for digit in digits:
        number = number << 5 | DIGITS.index(digit)
    code = number.to_bytes(35, "big")
    if hashlib.sha256(code[:32]).digest()[:3] != code[32:]:
        raise Refused("the recovery code has a typing error")
    return code[:32]


def slot_key(slot, kind, secret):
    """Returns the key that encrypts a slot."""
    salt = slot[24:56]
    if kind != 1:
        return hkdf(secret, salt, "pumice 1 key slot" if kind == 2 else "pumice 1 recovery slot")
    from argon2.low_level import Type, hash_secret_raw
    memory, passes = struct.unpack_from("<II", slot, 4)
    return hash_secret_raw(secret, salt, passes, memory, slot[1], 32, Type.ID, 0x13)


def open_slots(uuid, slots, kind, secret):
    """Returns the master key; `kind` is the kind of the secret: 1, 2 or 3."""
    for at in range(0, SLOTS * SLOT, SLOT):
        slot = slots[at:at + SLOT]
        if slot[0] == kind:
            try:
                key = slot_key(slot, kind, secret)
                return gcm_siv_open(key, slot[56:68], slot[68:116], uuid + slot[:56])
            except Refused:
                pass
    raise Refused("wrong key")


class Keys:
    """The keys derived from a master key."""

    def __init__(self, uuid, master):
        self.uuid = uuid
        self.payload, header, tweak, record, batch, superblock, self.earlier = (
            hkdf(master, uuid, f"pumice 1 {label}") for label in (
                "payload", "header", "header tweak", "record", "batch", "superblock",
                "earlier key"))
        self.header, self.tweak, self.record, self.batch, self.superblock = (
            Aes(key) for key in (header, tweak, record, batch, superblock))


class Ring:
    """The keys of a drive: the present ones, and those of earlier segments."""

    def __init__(self, superblock, kind, secret):
        uuid = superblock.uuid
        master = open_slots(uuid, superblock.key_slots, kind, secret)
        self.uuid, self.since = uuid, superblock.key_since
        self.present = self.former = Keys(uuid, master)
        if any(superblock.key_earlier):
            wrapped = superblock.key_earlier
            earlier = gcm_siv_open(self.present.earlier, wrapped[:12], wrapped[12:], uuid)
            self.former = Keys(uuid, earlier)

    def of(self, generation):
        return self.present if generation >= self.since else self.former

    def superblock_mac(self, data):
        """Returns the MAC of a superblock slot."""
        bare = data[:16] + bytes(8) + data[24:2138] + bytes(16) + data[2154:]
        return cmac(self.present.superblock, bare)

    def batch_mac(self, header, data):
        """Returns the header checksum of a batch."""
        mac = cmac(self.of(header.generation).batch, data[:8] + bytes(8) + data[16:])
        return int.from_bytes(mac[:8], "little")

    def show(self, data, place):
        """Returns `data` with the record header and sources at its start decrypted and the rest
        unchanged, and the header checksum that they must have."""
        keys = self.of(place[0])
        tweak = struct.pack("<QII", *place)
        header = xts_decrypt(keys.header, keys.tweak, tweak, data[4:28])
        end = 28 + 16 * header[13]
        stored, sources = data[4:end], b""
        mac = int.from_bytes(cmac(keys.record, tweak + stored)[:4], "little")
        if end > 28 and len(data) >= end:
            tweak = struct.pack("<QII", place[0], place[1], place[2] + 28)
            sources = xts_decrypt(keys.header, keys.tweak, tweak, data[28:end])
        return data[:4] + header + sources + data[28 + len(sources):], mac

    def open(self, header, place, payload):
        """Returns the decrypted payload of a record."""
        bound = self.uuid + bytes([header.kind, header.argument, header.blocks, 0])
        bound += struct.pack("<Q", header.number)
        bound += struct.pack("<QII", *place) if header.kind == 5 else bytes(16)
        return gcm_siv_open(self.of(place[0]).payload, payload[:12], payload[12:], bound)


def check_ciphers():
    """Checks the ciphers with known answers."""
    counted = bytes(range(32))
    for aes in (PlainAes(counted), Aes(counted)):
        # FIPS 197, appendix C.3.
        clear = bytes.fromhex("00112233445566778899aabbccddeeff")
        stored = bytes.fromhex("8ea2b7ca516745bfeafc49904b496089")
        assert aes.encrypt(clear) == stored and aes.decrypt(stored) == clear
    # RFC 8452, appendix C.2.
    key, nonce = bytes([1]).ljust(32, b"\0"), bytes([3]).ljust(12, b"\0")
    sealed = bytes.fromhex("c91545823cc24f17dbb0e9e807d5ec17b292d28ff61189e8e49f3875ef91aff7")
    assert gcm_siv_open(key, nonce, sealed, b"\x01") == bytes([2]).ljust(16, b"\0")
    # OpenSSL.
    assert cmac(Aes(counted), b"pumice").hex() == "a37b27d2dfc7dee4e5dc5a7f9b3aa042"
    stored = bytes.fromhex("cdc35529f5a7081f76c3f017183ced61a945182b1d42384a")
    unit = xts_decrypt(Aes(counted), Aes(bytes(range(32, 64))), bytes(range(100, 116)), stored)
    assert unit == bytes(n * 7 % 256 for n in range(24))


check_ciphers()
