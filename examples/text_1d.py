# %% [markdown]
"""One dimension: a convolution that finds a word in a text, as attention with positions of two
numbers.

The kernel has one tap for each letter of the word, so the attention has one head for each letter:
head h looks h letters ahead and tests for the right letter.  The output counts how many match.
"""

# %%
import string

import torch
from torch import nn

import construct

WORD = "the"
TEXT = "the father gathers the other feathers, then he breathes"
LETTERS = string.ascii_lowercase + " ,"


def one_hot(text: str) -> torch.Tensor:
    """(letters of the alphabet, letters of the text)."""
    return torch.stack([torch.tensor([float(c == letter) for c in text]) for letter in LETTERS])


# %% [markdown]
# The kernel is the word itself: tap j is 1 at the word's letter j.

# %%
conv = nn.Conv1d(len(LETTERS), 1, len(WORD), bias=False)
with torch.no_grad():
    conv.weight.copy_(one_hot(WORD)[None])
layer = construct.conv_to_mhsa(conv)

# %% [markdown]
# Where each head looks is read back from the parameters; the query is in the middle of the word.

# %%
_, shifts = layer.centres()
for letter, shift in zip(WORD, shifts.flatten().int().tolist(), strict=True):
    print(f"the head that wants {letter!r} looks {shift:+d} from the query")
print(f"each position is r = (δ², δ): D_p = {layer.w_key_pos.shape[2]}")

# %%
with torch.no_grad():
    output, expected = layer(one_hot(TEXT)[None])[0, 0], conv(one_hot(TEXT)[None])[0, 0]
places = [k for k, count in enumerate(output.tolist()) if count == len(WORD)]
print(TEXT)
print("".join("^" if k in places else " " for k in range(len(TEXT))).rstrip())
print(f"{WORD!r} begins at {places}")

# %%
assert torch.equal(output, expected), "small integers: equal bit for bit"
assert places == [k for k in range(len(TEXT)) if TEXT.startswith(WORD, k)]
