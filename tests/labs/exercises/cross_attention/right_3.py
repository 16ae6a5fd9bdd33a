import torch


def cross_attend(x, memory, w_q, w_k, w_v, is_real=None):
    s = torch.einsum("bnd,dw,bme,ew->bnm", x, w_q, memory, w_k) * w_k.shape[1] ** -0.5
    e = (s - s.max(-1, keepdim=True).values).exp()
    if is_real is not None:
        e = e * is_real.unsqueeze(1)
    w = e / e.sum(-1, keepdim=True)
    return w @ memory @ w_v, w
